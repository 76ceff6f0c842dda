"""A rolling restart between builds whose page layout or kernels differ: worker after worker, under load, no request fails."""
import os
import threading

import grpc
import harness
from services import ServicesTest

TINY_LLAMA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../golden/models/tiny-llama")
PROMPTS = [[(7 * i + 3 * j) % 250 + 1 for j in range(5 + 40 * i)] for i in range(4)]


class Load(threading.Thread):
    """Asks again and again; keeps what came and what failed."""

    def __init__(self, client, start):
        super().__init__()
        self.client, self.next = client, start
        self.answers, self.errors, self.over = [], [], threading.Event()
        self.start()

    def run(self):
        while not self.over.is_set():
            number = self.next % len(PROMPTS)
            self.next += 1
            try:
                done = self.client.complete(tokens=PROMPTS[number], max_tokens=150, ignore_eos=True)
                self.answers.append((number, tuple(done.tokens[0])))
            except grpc.RpcError as error:
                self.errors.append(error)


class RollingTest(ServicesTest):
    def restart(self, workers, role, number, settings):
        """The worker of that name leaves; one of the new build comes."""
        process = next(p for p in self.services.running if p.pid == workers[number]["pid"])
        process.terminate()
        self.assertEqual(process.wait(60), 0)
        self.services.running.remove(process)
        workers[number] = self.services.start(f"sluice-{role}", *self.common, *settings, f"service.name={role}-{number}")

    def answers_of(self, runs=8):
        """Everything that the workers of now say to each prompt, by prompt."""
        return [{tuple(self.client.complete(tokens=p, max_tokens=150, ignore_eos=True).tokens[0]) for _ in range(runs)}
                for p in PROMPTS]

    def roll(self, model, old, new):
        self.start(prefills=2, decodes=2, worker=(f"model.path={model}", *old))
        allowed = self.answers_of(2)
        self.assertTrue(all(len(answers) == 1 for answers in allowed), "one build, one answer")
        loads = [Load(self.client, i) for i in range(3)]
        self.common = (*self.common, *new)
        try:
            for role, number in (("decode", 0), ("prefill", 0), ("decode", 1), ("prefill", 1)):
                self.restart(self.decodes if role == "decode" else self.prefills, role, number, ())
                for answers, more in zip(allowed, self.answers_of(2)):
                    answers |= more
        finally:
            for load in loads:
                load.over.set()
            for load in loads:
                load.join(60)
        for load in loads:
            self.assertEqual(load.errors, [])
            self.assertGreater(len(load.answers), 10)
        for name in ("sluice_kv_digest_failures", "sluice_kv_tag_failures"):
            self.assertEqual(sum(self.metric(worker, name) for worker in self.prefills + self.decodes), 0)
        return allowed, [answer for load in loads for answer in load.answers], self.answers_of(2)

    def test_another_page_layout(self):
        before = ("engine.kv_format=bf16",)
        allowed, answers, after = self.roll("toy", before, ("engine.kv_format=gqa_fp8",))
        # Pages of one layout are never read as the other's, so there are two answers and no third.
        for number, seen in enumerate(allowed):
            self.assertLessEqual(len(seen | after[number]), 2)
        for number, tokens in answers:
            self.assertIn(tokens, allowed[number] | after[number])

    def test_other_kernels(self):
        _, answers, after = self.roll(TINY_LLAMA, ("engine.kernels=reference",), ("engine.kernels=auto",))
        # Prompt and output may have been computed by either build: at most four answers.
        for number in range(len(PROMPTS)):
            self.assertLessEqual(len({tokens for n, tokens in answers if n == number} | after[number]), 4)
        self.assertTrue(all(len(seen) == 1 for seen in after), "one build again")


if __name__ == "__main__":
    harness.main()
