"""Split RL over two nodes, which are two network namespaces joined by a cable: trainers on one side, workers on the other, as
one job and as workers that join. It is the run of one host bit for bit, the cable cut or a worker stopped on the way; who is
not of the run is turned away by name.

Needs root and `ip netns`; without them it says so and ends with 77, which ctest counts as skipped.
"""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

import harness
import split_test
import two_nodes_test as two_nodes

SECRET = "a secret of enough characters"
# Trainers wait so long for each other; workers of which nothing is heard are given up sooner.
DEADLINE_S = 60
CHANGES = {"trainer__save_freq": 6, "trainer__test_freq": 3, "trainer__deadline_seconds": DEADLINE_S}


def cable(up):
    two_nodes.ip("-netns", two_nodes.namespace(1), "link", "set", "eth0", "up" if up else "down")


class SplitNamespaces(split_test.SplitJob):
    def inside(self, node, log, *arguments, failpoint="", secret=SECRET, program=harness.KEEL):
        """A launcher on one of the nodes."""
        out = open(self.folder / log, "ab")
        self.addCleanup(out.close)
        process = subprocess.Popen(
            ["ip", "netns", "exec", two_nodes.namespace(node), program, "launch", *map(str, arguments)], stdout=out,
            stderr=subprocess.STDOUT, env={**harness.environment(), "KEEL_FAILPOINT": failpoint, "KEEL_JOB_SECRET": secret})  # fmt: skip
        self.addCleanup(harness.end_with_children, process)
        return process

    def text(self, log):
        return (self.folder / log).read_text(errors="replace")

    def ends(self, process, code, *logs):
        try:
            process.wait(timeout=harness.LIMIT_S)
        except subprocess.TimeoutExpired:
            self.fail("it does not end:\n" + "\n".join(self.text(log)[-3000:] for log in logs))
        self.assertEqual(process.returncode, code, "\n".join(self.text(log)[-3000:] for log in logs))

    def start_job(self, name, trainers, workers, megatron=None, failpoint="", **changes):
        """Over both nodes, half of its ranks on each."""
        config = self.split(name, megatron, **{**CHANGES, **changes})
        two_nodes.TwoNodes.port += 1
        return [
            self.inside(node, f"{name}_{node}.txt", "--nnodes", 2, "--node-rank", node, "--nproc-per-node", (trainers + workers) // 2,
                        "--master-addr", two_nodes.ADDRESSES[0], "--master-port", two_nodes.TwoNodes.port, "--roles",
                        f"trainer:{trainers},rollout:{workers}", "train", config, failpoint=failpoint)
            for node in range(2)
        ]  # fmt: skip

    def job_ends(self, name, nodes):
        for process in nodes:
            self.ends(process, 0, f"{name}_0.txt", f"{name}_1.txt")

    def colocated(self, megatron=None, ranks=1, **changes):
        self.train(self.rl("colocated", megatron, **{**CHANGES, **changes}), ranks=ranks)

    def same(self, name, other="colocated"):
        self.assertEqual(self.learnt(name), self.learnt(other))
        self.assertEqual(self.digests(name, 6), self.digests(other, 6))

    def start_trainers(self, name, failpoint="worker.step:*:*:delay=60", **changes):
        """One trainer and one worker of its own on node 0, that others can join; the run's configuration and desk."""
        config = self.split(name, **CHANGES, **changes)
        two_nodes.TwoNodes.port += 1
        job = self.inside(0, f"{name}.txt", "--nproc-per-node", 2, "--roles", "trainer:1,rollout:1", "--master-addr", two_nodes.ADDRESSES[0],
                          "--master-port", two_nodes.TwoNodes.port, "train", config, failpoint=failpoint)  # fmt: skip
        file = self.run_dir(name) / "desk.json"
        self.wait_until(file.exists, "the desk", job)
        desk = json.loads(file.read_text())
        self.assertEqual(desk["host"], two_nodes.ADDRESSES[0])
        return job, config, f"{desk['host']}:{desk['port']}"

    def start_worker(self, log, config, address, *flags, overrides=(), **options):
        return self.inside(1, log, "--nproc-per-node", 1, *flags, "rollout", config, *overrides, "--join", address,
                           failpoint="worker.step:*:*:delay=60", **options)  # fmt: skip

    def serving(self, name, job):
        """Waits until the worker that joined generates."""
        def tokens():
            status = ["ip", "netns", "exec", two_nodes.namespace(0), harness.KEEL, "status", str(self.run_dir(name)), "--json"]
            done = subprocess.run(status, capture_output=True, text=True, timeout=60, check=False)
            desk = json.loads(done.stdout)["desk"] if done.returncode == 0 else None
            return any(w["name"].startswith("joined") and w["tokens"] > 0 for w in desk["workers"]) if desk else False

        self.wait_until(tokens, "the worker that joined generates", job)

    def log(self):
        return "\n".join(f"{path.name}:\n{path.read_text(errors='replace')[-3000:]}" for path in sorted(self.folder.glob("*.txt")))

    def lost(self, name):
        return max(data["fully_async/count/workers_lost"] for data in self.steps(name).values())

    def test_roles_over_two_nodes_are_the_run_of_one_host(self):
        """A trainer and a worker on one node, two workers on the other; then trainers on both."""
        alone = {"actor_rollout_ref__rollout__tensor_model_parallel_size": 1}
        for trainers in (1, 3):
            with self.subTest(trainers=trainers):
                name, tensor = f"over_{trainers}", {"tensor_model_parallel_size": trainers}
                self.train(self.rl(f"colocated_{trainers}", tensor, **CHANGES, **alone), ranks=trainers)
                self.job_ends(name, self.start_job(name, trainers, 4 - trainers, tensor, **alone))
                self.same(name, f"colocated_{trainers}")

    def test_a_worker_that_is_started_again_when_the_trainers_are_through_ends_with_them(self):
        """On a node that has no rank that trains. Its launcher would have started it again for ever, and the other waited."""
        # Nothing is validated after the last step, which would wait for the workers.
        pair = {"actor_rollout_ref__rollout__tensor_model_parallel_size": 2, "trainer__test_freq": -1}
        self.colocated({"tensor_model_parallel_size": 1}, 2, **pair)
        nodes = self.start_job("apart", 2, 2, {"tensor_model_parallel_size": 1}, "trainer.close:0:1:stop", **pair)
        self.wait_until(lambda: 3 in harness.ranks_below(nodes[1]), "rank 3", nodes[1])
        follower = harness.ranks_below(nodes[1])[3]
        trainer = self.stopped_rank(nodes[0], 0)
        self.assertEqual(len(self.steps("apart")), 6)
        harness.kill(follower)
        self.wait_until(lambda: "is started again" in self.text("apart_1.txt"), "its start", nodes[1])
        harness.kill(trainer, signal.SIGCONT)
        self.job_ends("apart", nodes)
        self.same("apart")

    def test_a_cable_that_is_cut_for_seconds_costs_nothing(self):
        self.colocated()
        job, config, address = self.start_trainers("cut", async_training__worker_timeout_seconds=60, async_training__min_workers=2)
        worker = self.start_worker("worker.txt", config, address)
        self.serving("cut", job)
        self.addCleanup(cable, True)
        cable(False)
        time.sleep(2)
        cable(True)
        self.ends(job, 0, "cut.txt", "worker.txt")
        self.ends(worker, 0, "worker.txt")
        self.same("cut")
        self.assertEqual(self.lost("cut"), 0)

    def test_a_cable_that_is_cut_for_good_costs_the_worker(self):
        self.colocated()
        job, config, address = self.start_trainers("cut", async_training__worker_timeout_seconds=8, async_training__min_workers=2)
        worker = self.start_worker("worker.txt", config, address)
        self.serving("cut", job)
        self.addCleanup(cable, True)
        cable(False)
        self.ends(job, 0, "cut.txt", "worker.txt")
        self.ends(worker, 69, "worker.txt")
        self.assertRegex(self.text("cut.txt"), r"rollout worker joined 0 \(host .*\) is given up: .*; others take its samples")
        self.assertRegex(self.text("worker.txt"), r"the desk \(trainer rank 0\) is gone: its host has confirmed nothing for 8 s|lost a peer")
        self.same("cut")
        self.assertEqual(self.lost("cut"), 1)

    def test_a_worker_that_stands_still_is_waited_for_or_given_up(self):
        """Given up, it hears of it when it goes on, and its launcher has it join again."""
        self.colocated()
        job, config, address = self.start_trainers("slow", async_training__worker_timeout_seconds=8, async_training__min_workers=2)
        worker = self.start_worker("worker.txt", config, address, "--max-restarts", 9)
        self.serving("slow", job)
        pid = harness.ranks_below(worker)[0]
        os.kill(pid, signal.SIGSTOP)
        self.addCleanup(harness.kill, pid)
        time.sleep(0.5)
        os.kill(pid, signal.SIGCONT)
        self.wait_until(lambda: len(self.steps("slow")) >= 2, "step 2", job)
        self.assertNotIn("is given up", self.text("slow.txt"))
        os.kill(pid, signal.SIGSTOP)
        self.wait_until(lambda: "is given up: nothing was heard of it for 8 s" in self.text("slow.txt"), "it is given up", job)
        os.kill(pid, signal.SIGCONT)
        self.wait_until(lambda: "it is started again" in self.text("worker.txt"), "it joins again")
        self.ends(job, 0, "slow.txt", "worker.txt")
        worker.terminate()
        worker.wait(timeout=60)
        self.assertIn("the desk: nothing was heard of it for 8 s", self.text("worker.txt"))
        self.same("slow")
        self.assertEqual(self.lost("slow"), 1)

    def test_who_is_not_of_the_run_is_turned_away_by_name(self):
        # Nothing gets on until they have been there.
        job, config, address = self.start_trainers("run", failpoint="worker.step:1:1:stop", async_training__worker_timeout_seconds=harness.LIMIT_S)
        program, ours, theirs = harness.another_build(self.folder / "another")
        workers = {
            "model": (self.start_worker("model.txt", config, address, overrides=["actor_rollout_ref.model.config.hidden_size=32"]), 78,
                      "actor_rollout_ref.model.config"),
            "build": (self.start_worker("build.txt", config, address, program=str(program)), 78, theirs),
            "secret": (self.start_worker("secret.txt", config, address, secret="another secret of enough characters"), 64, "secret"),
        }  # fmt: skip
        for name, (worker, code, text) in workers.items():
            with self.subTest(name=name):
                self.ends(worker, code, f"{name}.txt", "run.txt")
                self.assertIn(text, self.text(f"{name}.txt"))
        self.assertIn(ours, self.text("build.txt"))
        self.assertEqual(self.text("run.txt").count("is turned away"), 3)


def main():
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        lacking = two_nodes.missing()
        if lacking is None:
            unittest.main()
    finally:
        two_nodes.remove_namespaces(two_nodes.namespaces_of(lambda pid: pid == os.getpid()))
    print(f"SKIPPED split_namespaces_test: it needs root and `ip netns`: {lacking}", file=sys.stderr)
    sys.exit(two_nodes.SKIPPED)


if __name__ == "__main__":
    main()
