"""An event model of RL steps: ranks that generate and train in turns, and ranks that do one of the two.

Fluid: between two events every engine makes tokens at a steady pace, and processes that compute share the cores
evenly. What it knows of a machine are the few times of `Costs`; what it leaves out is all that a program does beside
generating and training, so that its times are a bound.
"""

import dataclasses
import heapq
import random


@dataclasses.dataclass
class Costs:
    step: float  # seconds of an engine's step, whatever it does
    sequence: float  # seconds more for each sequence in it
    train: float  # seconds of a training step for each token of its responses, on all trainers together
    train_fixed: float = 0.0  # seconds of a training step beside that
    prefill: float = 0.0  # seconds for each token that new weights compute again
    verifier: float = 0.0  # seconds from a response's last token to its score
    cores: float = float("inf")  # that all processes share

    def pace(self, sequences):
        """Seconds a token."""
        return self.step + self.sequence * sequences

    def training(self, tokens, trainers):
        return self.train_fixed + self.train * tokens / trainers


def lognormal_lengths(count, mean, sigma, cap, seed):
    """`count` lengths from 1 to `cap` of a lognormal distribution with so much mean before the cut."""
    chance = random.Random(seed)
    mu = -sigma * sigma / 2
    return [max(1, min(cap, round(mean * chance.lognormvariate(mu, sigma)))) for _ in range(count)]


def colocated(lengths, batch, ranks, costs):
    """Seconds for all positions. `lengths`: for each position those of its samples; prompts go round the ranks."""
    total = 0.0
    for begin in range(0, len(lengths), batch):
        step = lengths[begin : begin + batch]
        slowest = 0.0
        for rank in range(ranks):
            left = sorted(length for samples in step[rank::ranks] for length in samples)
            done, elapsed = 0, 0.0
            for place, length in enumerate(left):
                elapsed += (length - done) * costs.pace(len(left) - place)
                done = length
            slowest = max(slowest, elapsed)
        crowd = max(1.0, ranks / costs.cores)
        tokens = sum(sum(samples) for samples in step)
        total += (slowest + costs.training(tokens, ranks)) * crowd + costs.verifier
    return total


class _Worker:
    def __init__(self):
        self.left = {}  # tokens to make, by sample
        self.debt = 0.0  # seconds of computing again what new weights have no keys and values of

    @property
    def busy(self):
        return bool(self.left)


def split(lengths, batch, workers, trainers, staleness, costs):
    """Seconds for all positions, and the greatest age of a token at its training, in steps.

    As the desk does it: the sample at position p is due at step p // batch; weights of s steps may go on with it
    while that is at most s + `staleness`; workers get even shares, oldest positions first, the samples of
    a position together.
    """
    pool = [_Worker() for _ in range(workers)]
    waiting = [(p, s) for p, samples in enumerate(lengths) for s in range(len(samples))]
    waiting.reverse()
    left_of_step = [sum(len(samples) for samples in lengths[b : b + batch]) for b in range(0, len(lengths), batch)]
    begun_with = {}
    scored = []  # heap of (when, step): verifiers at work
    now, weights, taken, training, oldest = 0.0, 0, 0, 0.0, 0
    while weights < len(left_of_step):
        while scored and scored[0][0] <= now + 1e-12:
            left_of_step[heapq.heappop(scored)[1]] -= 1
        if training == 0.0 and taken == weights and left_of_step[taken] == 0:
            tokens = sum(sum(samples) for samples in lengths[taken * batch : (taken + 1) * batch])
            training, taken = costs.training(tokens, trainers), taken + 1
        # Shares of what may be generated now.
        reach = []
        while waiting and waiting[-1][0] // batch <= weights + staleness:
            reach.append(waiting.pop())
        if reach:
            held = sum(len(worker.left) for worker in pool)
            share = -(-(len(reach) + held) // workers)
            taker, position = None, None
            for sample in reach:  # those of a position together, while there is room
                if taker is None or sample[0] != position or len(taker.left) >= share:
                    taker, position = min(pool, key=lambda worker: len(worker.left)), sample[0]
                taker.left[sample] = float(lengths[sample[0]][sample[1]])
                begun_with[sample] = weights
        busy = [worker for worker in pool if worker.busy]
        processes = len(busy) + (trainers if training > 0 else 0)
        speed = min(1.0, costs.cores / processes) if processes else 1.0
        until = [scored[0][0] - now] if scored else []
        if training > 0:
            until.append(training / speed)
        for worker in busy:
            until.append((worker.debt + min(worker.left.values()) * costs.pace(len(worker.left))) / speed)
        assert until, "nothing can go on"
        step = max(0.0, min(until))
        now += step
        if training > 0:
            training -= step * speed
            if training <= 1e-12:
                training, weights = 0.0, weights + 1
                for worker in pool:  # what they are at is computed again
                    worker.debt += costs.prefill * sum(lengths[p][s] - left for (p, s), left in worker.left.items())
        for worker in busy:
            work = step * speed
            paid = min(work, worker.debt)
            worker.debt -= paid
            made = (work - paid) / costs.pace(len(worker.left))
            for sample in list(worker.left):
                worker.left[sample] -= made
                if worker.left[sample] <= 1e-9:
                    del worker.left[sample]
                    due = sample[0] // batch
                    oldest = max(oldest, due - begun_with[sample])
                    heapq.heappush(scored, (now + costs.verifier, due))
    return now, oldest
