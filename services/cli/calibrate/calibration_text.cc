#include "services/cli/calibrate/calibration_text.h"

namespace sluice::cli {

absl::string_view CalibrationText() {
  return R"TEXT(The ferry left the harbour a little before six, when the lamps on the quay were still burning and the fishermen had begun to fold their nets. Nobody on deck spoke much. A woman in a grey coat counted the crates of apples that her brother had sent from the valley; a boy of perhaps nine years leaned over the rail and tried to see the wheel under the foam. Behind them the town grew smaller, first the warehouses, then the church, then the hill with its three windmills, until only the smoke of the brickworks was left.

"Will it be cold on the island?" the boy asked.

"Not colder than here," she said. "But there is always wind, and you will have to hold on to your hat."

Water boils at a lower temperature on a mountain than at the coast, because the air above it is thinner and presses less on its surface. A cook who follows a recipe from the plains therefore needs more time for beans and potatoes. The same law explains why a closed pot works faster: the steam cannot leave, the pressure rises, and with it the temperature at which the water boils.

Dear Mr. Okafor,
thank you for your letter of 14 March. We have checked invoice 20417 and found that two of the seven items were counted twice. The difference of 86.40 will be paid back within ten days. Please accept our apologies, and let us know if anything else is unclear.

def merge(left, right):
    result = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            result.append(left[i])
            i += 1
        else:
            result.append(right[j])
            j += 1
    return result + left[i:] + right[j:]

Question: A train covers 150 kilometres in two hours and then 90 kilometres in one hour. What is its average speed?
Answer: It covers 150 + 90 = 240 kilometres in 2 + 1 = 3 hours, so its average speed is 240 / 3 = 80 kilometres per hour.

{"station": "North Gate", "readings": [{"hour": 7, "level": 1.32}, {"hour": 8, "level": 1.41}, {"hour": 9, "level": 1.38}], "valid": true}

To plant a young tree, choose a day without frost. 1. Dig a hole twice as wide as the roots. 2. Loosen the ground at the bottom. 3. Set the tree so that the mark on its trunk is level with the soil. 4. Fill the hole, tread it down gently and water it well. 5. Tie the trunk to a stake, loosely, so that it can still move in the wind.

Am Morgen lag der Markt noch im Schatten, aber die Händler hatten ihre Stände schon aufgebaut. Es roch nach frischem Brot und nach Regen. La vieille horloge de la gare retardait de quatre minutes, et tout le monde le savait sauf les voyageurs. El río baja despacio en verano y los niños lo cruzan descalzos.

The committee met four times that year. It asked every school for the number of its pupils, the state of its roof and the books in its library, and it learned that the smallest schools, which had the fewest books, lent them out most often. Its report had forty pages; its advice, in the end, was a single sentence: buy shelves last.

int count_bits(unsigned value) {
  int bits = 0;
  for (; value != 0; value &= value - 1) ++bits;
  return bits;
}

When the ferry came back in the evening the boy was asleep on a coil of rope, and his hat was gone.
)TEXT";
}

}  // namespace sluice::cli
