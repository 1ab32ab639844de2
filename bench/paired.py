"""Paired comparison on a noisy machine: order A B B A, ratios of neighbours, a bootstrap interval."""

import random
import statistics


def order(rounds, seed):
    """ABBA and BAAB equally often, in an order by chance; linear drift cancels within a round."""
    chance = random.Random(seed)
    first, second = chance.sample(["ABBA", "BAAB"], 2)
    orders = [first if i % 2 == 0 else second for i in range(rounds)]
    chance.shuffle(orders)
    return orders


def interval(ratios, seed=1, resamples=10_000):
    """95 % bootstrap interval of the median."""
    chance = random.Random(seed)
    medians = sorted(
        statistics.median(chance.choices(ratios, k=len(ratios))) for _ in range(resamples)
    )
    return medians[int(0.025 * resamples)], medians[int(0.975 * resamples)]


def summarize(ratios):
    low, high = interval(ratios)
    return {"median": statistics.median(ratios), "low": low, "high": high, "pairs": len(ratios)}


def compare(rounds, rate):
    """`rounds`: lists of four (side, sample) in the order run; `rate(sample)`: higher is better.

    Returns the ratio A / B, and as a control the ratio of the two neighbours that were the same side:
    its interval must hold 1, else the run says nothing.
    """
    ratios, controls = [], []
    for samples in rounds:
        (s0, x0), (s1, x1), (s2, x2), (s3, x3) = [(side, rate(sample)) for side, sample in samples]
        ratios += [x0 / x1, x3 / x2] if s0 == "A" else [x1 / x0, x2 / x3]
        controls.append(x2 / x1)
    control = summarize(controls)
    control["holds_one"] = control["low"] <= 1.0 <= control["high"]
    return {"ratio": summarize(ratios), "control": control}


def pairs(rounds, value):
    """(A, B) of neighbours, from rounds as `compare` takes them."""
    found = []
    for samples in rounds:
        (s0, x0), (_, x1), (_, x2), (_, x3) = [(side, value(sample)) for side, sample in samples]
        found += [(x0, x1), (x3, x2)] if s0 == "A" else [(x1, x0), (x2, x3)]
    return found


def ratio_of_medians(found, seed=1, resamples=10_000):
    """median(A) / median(B) with its 95 % bootstrap interval over pairs.

    For values of which single ones may be next to zero, such as time lost, where ratios of pairs say nothing.
    """
    chance = random.Random(seed)

    def ratio(chosen):
        below = statistics.median(b for _, b in chosen)
        return statistics.median(a for a, _ in chosen) / below if below > 0 else float("inf")

    ratios = sorted(ratio(chance.choices(found, k=len(found))) for _ in range(resamples))
    return {
        "median": ratio(found), "low": ratios[int(0.025 * resamples)], "high": ratios[int(0.975 * resamples)],
        "pairs": len(found),
    }  # fmt: skip
