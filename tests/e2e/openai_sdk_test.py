"""The HTTP API through OpenAI's own Python client, against a running router.

    openai_sdk_test.py --url http://127.0.0.1:8080 [--model toy] [--api-key KEY]

Needs the package openai. Without --model the first one listed is used. It must produce text for any prompt (the toy model does).
"""
import argparse
import concurrent.futures
import json
import sys
import time
import unittest
import urllib.request

import openai

ARGS = None
HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Tell me about rivers."}]


def client(**options):
    settings = {"base_url": ARGS.url + "/v1", "api_key": ARGS.api_key, "max_retries": 0, "timeout": 60, **options}
    return openai.OpenAI(**settings)


def exact(**options):
    """Options that make an answer of known length."""
    return {"model": ARGS.model, "temperature": 0, "extra_body": {"ignore_eos": True}, **options}


class ModelsTest(unittest.TestCase):
    def test_lists_and_retrieves(self):
        ids = [m.id for m in client().models.list()]
        self.assertIn(ARGS.model, ids)
        self.assertEqual(client().models.retrieve(ARGS.model).id, ARGS.model)
        with self.assertRaises(openai.NotFoundError) as caught:
            client().models.retrieve("no-such-model")
        self.assertEqual(caught.exception.code, "model_not_found")


class ChatTest(unittest.TestCase):
    def test_answers_whole(self):
        raw = client().chat.completions.with_raw_response.create(messages=HELLO, max_tokens=12, **exact(),
                                                                 extra_headers={"x-request-id": "sdk-1"})
        self.assertEqual(raw.headers["x-request-id"], "sdk-1")
        self.assertGreaterEqual(int(raw.headers["openai-processing-ms"]), 0)
        answer = raw.parse()
        self.assertEqual(answer.object, "chat.completion")
        self.assertEqual(answer.model, ARGS.model)
        self.assertLess(abs(answer.created - time.time()), 600)
        self.assertEqual(len(answer.choices), 1)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertEqual(answer.choices[0].finish_reason, "length")
        self.assertEqual(answer.usage.completion_tokens, 12)
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + 12)
        self.assertGreaterEqual(answer.usage.prompt_tokens_details.cached_tokens, 0)

    def test_streams_what_it_answers_whole(self):
        whole = client().chat.completions.create(messages=HELLO, max_tokens=24, **exact())
        chunks = list(client().chat.completions.create(messages=HELLO, max_tokens=24, stream=True,
                                                       stream_options={"include_usage": True}, **exact()))
        self.assertEqual(len({c.id for c in chunks}), 1)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertTrue(all(c.usage is None for c in chunks[:-1]))
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, 24)
        text = "".join(c.choices[0].delta.content or "" for c in chunks[:-1])
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks[:-1] if c.choices[0].finish_reason], ["length"])

    def test_without_include_usage_there_is_none(self):
        chunks = list(client().chat.completions.create(messages=HELLO, max_tokens=4, stream=True, **exact()))
        self.assertTrue(all(c.usage is None and len(c.choices) == 1 for c in chunks))

    def test_choices_and_seeds(self):
        def ask(seed):
            answer = client().chat.completions.create(messages=HELLO, model=ARGS.model, max_completion_tokens=16, n=3,
                                                      temperature=1.0, seed=seed, extra_body={"ignore_eos": True})
            self.assertEqual([c.index for c in answer.choices], [0, 1, 2])
            self.assertEqual(answer.usage.completion_tokens, 48)
            return [c.message.content for c in answer.choices]
        self.assertEqual(ask(7), ask(7))
        self.assertNotEqual(ask(7), ask(8))

    def test_stop_strings_are_left_out(self):
        whole = client().chat.completions.create(messages=HELLO, max_tokens=32, **exact()).choices[0].message.content
        stop = whole[10:13]
        answer = client().chat.completions.create(messages=HELLO, max_tokens=32, stop=[stop], **exact())
        self.assertEqual(answer.choices[0].message.content, whole[:whole.index(stop)])
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_logprobs(self):
        answer = client().chat.completions.create(messages=HELLO, max_tokens=5, logprobs=True, top_logprobs=3, **exact())
        content = answer.choices[0].logprobs.content
        self.assertEqual(len(content), 5)
        for entry in content:
            self.assertLessEqual(entry.logprob, 0)
            self.assertEqual(len(entry.top_logprobs), 3)
            self.assertEqual(entry.top_logprobs[0].token, entry.token)  # greedy takes the likeliest
        text = b"".join(bytes(e.bytes or []) for e in content).decode(errors="replace")
        self.assertTrue(text.startswith(answer.choices[0].message.content[:1]))

    def test_content_in_parts(self):
        parts = [{"role": "user", "content": [{"type": "text", "text": "Tell me "}, {"type": "text", "text": "more."}]}]
        joined = [{"role": "user", "content": "Tell me more."}]
        first, second = (client().chat.completions.create(messages=m, max_tokens=8, **exact()) for m in (parts, joined))
        self.assertEqual(first.choices[0].message.content, second.choices[0].message.content)

    def test_the_second_turn_is_cached(self):
        turns = [{"role": "user", "content": "a question that is long enough to fill several pages of the cache. " * 4}]
        answer = client().chat.completions.create(messages=turns, max_tokens=8, **exact())
        turns += [{"role": "assistant", "content": answer.choices[0].message.content}, {"role": "user", "content": "go on"}]
        again = client().chat.completions.create(messages=turns, max_tokens=8, **exact())
        self.assertGreater(again.usage.prompt_tokens_details.cached_tokens, 0)

    def test_many_streams_at_once(self):
        def ask(number):
            messages = [{"role": "user", "content": f"number {number}"}]
            chunks = client().chat.completions.create(messages=messages, max_tokens=16, stream=True, **exact())
            return "".join(c.choices[0].delta.content or "" for c in chunks)
        alone = [ask(i) for i in range(8)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(ask, range(8))), alone)

    def test_leaving_a_stream_leaves_the_server_well(self):
        for _ in range(5):
            stream = client().chat.completions.create(messages=HELLO, max_tokens=400, stream=True, **exact())
            next(iter(stream))
            stream.close()
        self.test_answers_whole()


class CompletionsTest(unittest.TestCase):
    def test_text_and_token_ids_agree(self):
        request = urllib.request.Request(ARGS.url + "/tokenize", json.dumps({"model": ARGS.model, "prompt": "once upon"}).encode(),
                                         {"Content-Type": "application/json", "Authorization": "Bearer " + ARGS.api_key})
        tokens = json.load(urllib.request.urlopen(request, timeout=60))["tokens"]
        first, second = (client().completions.create(prompt=p, max_tokens=10, **exact()) for p in ("once upon", tokens))
        self.assertEqual(first.object, "text_completion")
        self.assertEqual(first.choices[0].text, second.choices[0].text)
        self.assertEqual(first.usage.prompt_tokens, len(tokens))

    def test_streams_what_it_answers_whole(self):
        whole = client().completions.create(prompt="once upon", max_tokens=20, **exact())
        chunks = list(client().completions.create(prompt="once upon", max_tokens=20, stream=True, **exact()))
        self.assertEqual("".join(c.choices[0].text for c in chunks), whole.choices[0].text)

    def test_several_prompts(self):
        prompts = ["one", "two", "three"]
        answer = client().completions.create(prompt=prompts, max_tokens=6, **exact())
        alone = [client().completions.create(prompt=p, max_tokens=6, **exact()).choices[0].text for p in prompts]
        self.assertEqual([c.text for c in sorted(answer.choices, key=lambda c: c.index)], alone)

    def test_logprobs_line_up(self):
        choice = client().completions.create(prompt="once upon", max_tokens=6, logprobs=2, **exact()).choices[0]
        for values in (choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs,
                       choice.logprobs.text_offset):
            self.assertEqual(len(values), 6)
        self.assertTrue(all(t in top for t, top in zip(choice.logprobs.tokens, choice.logprobs.top_logprobs)))

    def test_the_default_is_16_tokens(self):
        self.assertEqual(client().completions.create(prompt="once upon", **exact()).usage.completion_tokens, 16)


class ErrorsTest(unittest.TestCase):
    def refuses(self, error, param=None, code=None, **options):
        with self.assertRaises(error) as caught:
            client().chat.completions.create(**{"messages": HELLO, "model": ARGS.model, "max_tokens": 4, **options})
        if param is not None:
            self.assertEqual(caught.exception.param, param)
        if code is not None:
            self.assertEqual(caught.exception.code, code)
        self.assertTrue(caught.exception.request_id)

    def test_bad_requests_name_the_parameter(self):
        self.refuses(openai.BadRequestError, "temperature", temperature=-1)
        self.refuses(openai.BadRequestError, "top_p", top_p=2)
        self.refuses(openai.BadRequestError, "n", n=100)
        self.refuses(openai.BadRequestError, "messages", messages=[])
        self.refuses(openai.BadRequestError, "stop", stop=[""])
        tools = [{"type": "function", "function": {"name": "f"}}]
        self.refuses(openai.BadRequestError, "tool_choice", "not_supported", tools=tools, tool_choice="required")
        self.refuses(openai.BadRequestError, "messages", tools=tools)  # the toy's template has no place for them
        self.refuses(openai.BadRequestError, "tools[0].function", tools=[{"type": "function"}])
        self.refuses(openai.BadRequestError, "response_format", response_format={"type": "json_object"})
        self.refuses(openai.BadRequestError, "logit_bias", logit_bias={"999999999": 1})

    def test_tools_that_must_not_be_called_change_nothing(self):
        options = {"messages": HELLO, "model": ARGS.model, "max_tokens": 4, "seed": 3, "temperature": 0}
        with_tools = client().chat.completions.create(
            **options, tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")
        plain = client().chat.completions.create(**options)
        self.assertEqual(with_tools.choices[0].message.content, plain.choices[0].message.content)
        self.assertIsNone(with_tools.choices[0].message.tool_calls)

    def test_a_context_that_is_too_long(self):
        self.refuses(openai.BadRequestError, code="context_length_exceeded", max_tokens=100_000_000)

    def test_unknown_models(self):
        self.refuses(openai.NotFoundError, code="model_not_found", model="no-such-model")

    def test_streams_are_refused_before_they_begin(self):
        self.refuses(openai.BadRequestError, "top_p", top_p=2, stream=True)
        self.refuses(openai.NotFoundError, model="no-such-model", stream=True)

    def test_unknown_members_are_named(self):
        raw = client().chat.completions.with_raw_response.create(messages=HELLO, model=ARGS.model, max_tokens=2,
                                                                 extra_body={"no_such_member": 1})
        self.assertEqual(raw.headers["x-sluice-ignored-fields"], "no_such_member")

    def test_unknown_paths(self):
        with self.assertRaises(openai.NotFoundError):
            client().embeddings.create(input="x", model=ARGS.model)

    def test_probes(self):
        for path in ("/health", "/live", "/ready", "/version"):
            self.assertEqual(urllib.request.urlopen(ARGS.url + path, timeout=60).status, 200)


def main():
    global ARGS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model")
    parser.add_argument("--api-key", default="none")
    ARGS, rest = parser.parse_known_args()
    ARGS.url = ARGS.url.rstrip("/")
    ARGS.model = ARGS.model or next(iter(client().models.list())).id
    unittest.main(argv=[sys.argv[0], *rest])


if __name__ == "__main__":
    main()
