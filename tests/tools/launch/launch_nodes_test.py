"""Several nodes on one machine: their launchers agree on causes, codes and restarts."""

import signal
import unittest

import launch_support
from launch_support import harness

MARK = 'echo $$ > "$0/pid.$RANK.$TORCHELASTIC_RESTART_COUNT"; '
WAIT_FOR_ALL = MARK + (
    'while [ "$(ls "$0"/pid.*.$TORCHELASTIC_RESTART_COUNT | wc -l)" != "$WORLD_SIZE" ]; do sleep 0.02; done; '
)
UNAVAILABLE = 69


class Nodes(launch_support.LaunchTest):
    def setUp(self):
        super().setUp()
        self.port = launch_support.free_port()

    def place(self, node, nodes):
        return ("--nnodes", nodes, "--node-rank", node, "--master-addr", "127.0.0.1", "--master-port", self.port)

    def start_node(self, node, script, *flags, nodes=3):
        return self.start(script, *self.place(node, nodes), *flags)

    def start_nodes(self, script, *flags, nodes=3):
        return [self.start_node(node, script, *flags, nodes=nodes) for node in range(nodes)]

    def wait_for_all(self, launched):
        return [node.wait() for node in launched]

    def assert_all(self, ended, code, *said):
        for node, end in enumerate(ended):
            self.assertEqual(end.code, code, f"node {node}: {end}")
            for text in said:
                self.assertIn(text, end.stderr, f"node {node}: {end}")

    def test_all_well(self):
        ended = self.wait_for_all(self.start_nodes("echo $RANK of $WORLD_SIZE", "--nproc-per-node", 2))
        self.assert_all(ended, 0)
        for node, end in enumerate(ended):
            lines = [f"[rank{rank}]: {rank} of 6" for rank in (2 * node, 2 * node + 1)]
            self.assertEqual(sorted(end.stdout.splitlines()), lines)

    def test_a_failing_rank_on_any_node_ends_all_with_its_code(self):
        for guilty in range(3):
            with self.subTest(node=guilty):
                self.port = launch_support.free_port()
                script = WAIT_FOR_ALL + (
                    f'[ "$RANK" = {guilty} ] || exec sleep 600; '
                    'echo \'{"message": "disk full"}\' > "$TORCHELASTIC_ERROR_FILE"; exit 74'
                )
                ended = self.wait_for_all(self.start_nodes(script))
                what = f"rank {guilty} on node {guilty} ended with exit code 74"
                self.assert_all(ended, 74, what, "root cause: disk full")
                self.assert_dead(self.pids(3).values())
                for path in self.folder.glob("pid.*"):
                    path.unlink()

    def test_a_killed_rank_is_the_cause_not_those_that_lost_it(self):
        # The others end of it before their launchers could be told, with the code of a lost peer.
        script = WAIT_FOR_ALL + '[ "$RANK" = 2 ] && exec sleep 600; '
        script += 'while [ ! -e "$0/go" ]; do sleep 0.02; done; exit 69'
        launched = self.start_nodes(script)
        pids = self.pids(3)
        harness.kill(pids["2.0"], signal.SIGKILL)
        (self.folder / "go").touch()
        self.assert_all(self.wait_for_all(launched), 128 + signal.SIGKILL, "rank 2 on node 2 was killed by SIGKILL")

    def test_ranks_that_ignore_sigterm_do_not_hold_the_others_up(self):
        script = 'trap "" TERM; ' + WAIT_FOR_ALL + '[ "$RANK" = 1 ] && exit 3; while :; do sleep 600; done'
        self.assert_all(self.wait_for_all(self.start_nodes(script)), 3, "rank 1 on node 1")
        self.assert_dead(self.pids(3).values())

    def test_all_restart_together(self):
        script = WAIT_FOR_ALL + (
            '[ "$TORCHELASTIC_RESTART_COUNT" = 2 ] && exit 0; '
            '[ "$RANK" = "$TORCHELASTIC_RESTART_COUNT" ] && exit 3; exec sleep 600'
        )
        ended = self.wait_for_all(self.start_nodes(script, "--max-restarts", 5))
        said = ("attempt 0: rank 0 on node 0", "restart 1 of 5", "attempt 1: rank 1 on node 1", "restart 2 of 5")
        self.assert_all(ended, 0, *said)
        self.assertEqual(len(self.pids(9)), 9)

    def test_restarts_run_out_for_all(self):
        script = WAIT_FOR_ALL + '[ "$RANK" = 2 ] && exit 3; exec sleep 600'
        ended = self.wait_for_all(self.start_nodes(script, "--max-restarts", 1))
        self.assert_all(ended, 3, "restart 1 of 1", "attempt 1: rank 2 on node 2")
        self.assertEqual(len(self.pids(6)), 6)

    def test_no_restart_when_it_cannot_help(self):
        script = WAIT_FOR_ALL + '[ "$RANK" = 1 ] && exit 65; exec sleep 600'
        ended = self.wait_for_all(self.start_nodes(script, "--max-restarts", 3))
        self.assert_all(ended, 65, "no restart after exit code 65")

    def test_a_signal_to_one_launcher_ends_all_without_a_restart(self):
        launched = self.start_nodes(MARK + "exec sleep 600", "--max-restarts", 3)
        self.pids(3)
        launched[1].process.send_signal(signal.SIGTERM)
        ended = self.wait_for_all(launched)
        self.assert_all(ended, 128 + signal.SIGTERM, "rank 1 on node 1 was killed by SIGTERM")
        self.assertEqual(len(self.pids(3)), 3)

    def test_asked_twice_by_usr1_all_end_without_a_restart(self):
        # As the ranks of a training job do, of which those of one node alone are asked.
        script = 'trap "exit 138" USR1; ' + MARK + (
            '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 0; while :; do sleep 0.05; done'
        )
        launched = self.start_nodes(script, "--max-restarts", 3)
        self.pids(3)
        launched[1].process.send_signal(signal.SIGUSR1)
        self.assert_all(self.wait_for_all(launched), 128 + signal.SIGUSR1, "rank 1 on node 1 ended with exit code 138")
        self.assertEqual(len(self.pids(3)), 3)

    def test_a_request_between_two_attempts_ends_all(self):
        # Node 0's rank has failed, node 1's does not leave at once: meanwhile node 0 is asked to stop.
        script = 'trap "" TERM; ' + WAIT_FOR_ALL + (
            '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exec sleep 5; [ "$RANK" = 0 ] && exit 3; exec sleep 600'
        )
        launched = self.start_nodes(script, "--max-restarts", 3, nodes=2)
        pids = self.pids(2)
        self.assert_dead([pids["0.0"]])
        launched[0].process.send_signal(signal.SIGUSR1)
        ended = self.wait_for_all(launched)
        # The rank's code where the request came before the launcher had handed in its end.
        self.assertIn(ended[0].code, (3, 128 + signal.SIGUSR1))
        self.assert_all(ended, ended[0].code)

    def test_preemption_is_all_nodes_code(self):
        # As the ranks of a training job do, who agree to save and leave.
        script = 'trap "touch $0/save" TERM; ' + WAIT_FOR_ALL + 'while [ ! -e "$0/save" ]; do sleep 0.02; done; exit 75'
        launched = self.start_nodes(script, "--max-restarts", 3)
        self.pids(3)
        launched[2].process.send_signal(signal.SIGTERM)
        self.assert_all(self.wait_for_all(launched), 75, "preempted: the state is saved")

    def test_a_node_that_ends_early_waits_for_the_others(self):
        # Node 0's launcher serves the store that the others' ranks may still need.
        script = MARK + '[ "$RANK" = 0 ] || { while [ ! -e "$0/go" ]; do sleep 0.02; done; }'
        launched = self.start_nodes(script)
        pids = self.pids(3)
        self.assert_dead([pids["0.0"]])
        self.assertIsNone(launched[0].process.poll())
        (self.folder / "go").touch()
        self.assert_all(self.wait_for_all(launched), 0)

    def test_node_0_gone_ends_the_others_who_name_the_store(self):
        launched = self.start_nodes(MARK + "exec sleep 600", "--max-restarts", 3)
        pids = self.pids(3)
        launched[0].process.kill()
        ended = self.wait_for_all(launched)[1:]
        self.assert_all(ended, UNAVAILABLE, f"127.0.0.1:{self.port}", "node 0's launcher")
        for end in ended:
            self.assertNotIn("c10d", end.stderr, "a stack trace of the store")
        self.assert_dead(pids.values())

    def test_another_node_gone_ends_all_without_a_restart(self):
        launched = self.start_nodes(MARK + "exec sleep 600", "--rdzv-conf", "keep_alive_timeout=10")
        pids = self.pids(3)
        launched[2].process.kill()
        self.assert_all(self.wait_for_all(launched)[:2], UNAVAILABLE, "node 2 was lost")
        self.assert_dead(pids.values())
        self.assertEqual(len(self.pids(3)), 3)

    def lose_node_2(self):
        """Of three whose ranks stay in the first attempt, and do well in the next; the launchers, and the flags."""
        script = WAIT_FOR_ALL + '[ "$TORCHELASTIC_RESTART_COUNT" = 0 ] || exit 0; exec sleep 600'
        flags = (script, "--rdzv-conf", "keep_alive_timeout=10", "--max-restarts", 2)
        launched = self.start_nodes(*flags)
        self.pids(3)
        launched[2].process.kill()
        launched[2].process.wait()
        return launched, flags

    def test_a_lost_node_that_is_started_again_goes_on_with_the_others(self):
        launched, flags = self.lose_node_2()
        # Before the others have noticed: it waits until they have.
        launched[2] = self.start_node(2, *flags)
        ended = self.wait_for_all(launched)
        self.assert_all(ended, 0)
        self.assert_all(ended[:2], 0, "node 2 was lost", "node(s) 2 to come back", "restart 1 of 2")
        self.assertEqual(len(self.pids(6)), 6)  # of two attempts

    def test_a_lost_node_that_is_started_with_other_flags_is_refused_alone(self):
        launched, flags = self.lose_node_2()
        ended = self.start_node(2, *flags, "--nproc-per-node", 2).wait()
        self.assertEqual(ended.code, 64, ended)
        self.assertIn("node 2 was started with", ended.stderr)
        self.assertIn("--nproc-per-node 2", ended.stderr)
        # It did nobody any harm.
        launched[2] = self.start_node(2, *flags)
        self.assert_all(self.wait_for_all(launched), 0)
        self.assertEqual(len(self.pids(6)), 6)

    def test_a_node_of_another_number_of_nodes_is_refused_at_once(self):
        first = self.start_node(0, "true", nodes=2)
        third = self.start_node(2, "true", nodes=3).wait()
        self.assertEqual(third.code, 64, third)
        self.assertIn("node 2 was started with --nnodes 3", third.stderr)
        self.assertIsNone(first.process.poll())
        self.assert_all(self.wait_for_all([first, self.start_node(1, "true", nodes=2)]), 0)

    def test_a_signal_ends_the_wait_for_a_lost_node(self):
        launched, _ = self.lose_node_2()
        # It says so on its pipe, which nobody reads before its end: the restart's number is the last word.
        line = ""
        while "restart 1 of 2" not in line:
            line = launched[1].process.stderr.readline()
            self.assertNotEqual(line, "", "node 1's launcher ended")
        launched[1].process.send_signal(signal.SIGTERM)
        ended = self.wait_for_all(launched[:2])
        self.assertEqual(ended[1].code, 128 + signal.SIGTERM, ended[1])
        self.assertEqual(ended[0].code, UNAVAILABLE, ended[0])
        self.assertIn("node 1 was told to stop while the job waited for node(s) 2", ended[0].stderr)

    def test_a_program_that_one_node_lacks(self):
        launched = [self.start_node(0, "exec sleep 600", nodes=2)]
        arguments = [launch_support.KEEL, "launch", *map(str, self.place(1, 2)), "--", "/no/program"]
        launched.append(launch_support.Launched(self, arguments))
        self.assert_all(self.wait_for_all(launched), 66, "node 1 could not start its ranks", "/no/program")

    def test_nodes_in_any_order(self):
        launched = [self.start_node(2, "true"), self.start_node(1, "true")]
        self.wait_until(lambda: all(harness.descendants(n.process.pid) == [] for n in launched), "no ranks yet")
        launched.append(self.start_node(0, "true"))
        self.assert_all(self.wait_for_all(launched), 0)

    def test_other_flags_on_one_node_are_refused_by_all(self):
        ended = self.wait_for_all(
            [self.start_node(node, "exec sleep 600", "--nproc-per-node", 1 + node, nodes=2) for node in range(2)]
        )
        self.assert_all(ended, 64, "node 1 was started with", "--nproc-per-node 2", "--nproc-per-node 1")

    def test_one_rank_for_two_nodes_is_refused(self):
        launched = [self.start_node(node, MARK + "exec sleep 600", nodes=2) for node in range(2)]
        self.pids(2)
        second = self.start_node(1, "true", nodes=2).wait()
        self.assertEqual(second.code, 64, second)
        self.assertIn("--node-rank 1", second.stderr)
        for node in launched:
            self.assertIsNone(node.process.poll())

    def start_with_secret(self, node, secret, *flags):
        env = {"KEEL_JOB_SECRET": secret}
        return self.start("exit 0", *self.place(node, 2), *flags, env=env)

    def test_a_secret_that_all_nodes_know(self):
        secret = "a secret of enough characters"
        launched = [self.start_with_secret(node, secret) for node in range(2)]
        ended = self.wait_for_all(launched)
        self.assert_all(ended, 0)
        for end in ended:
            self.assertNotIn(secret, end.stdout + end.stderr)

    def test_a_node_with_another_secret_is_turned_away(self):
        first = self.start_with_secret(0, "a secret of enough characters")
        for secret, why in (
            ("a secret of other characters", "KEEL_JOB_SECRET here is not the one"),
            (None, "it asks for the job's secret"),
        ):
            ended = self.start_with_secret(1, secret).wait()
            self.assertEqual(ended.code, 64, ended)
            self.assertIn(f"node 1 may not use the job's store at 127.0.0.1:{self.port}", ended.stderr)
            self.assertIn(why, ended.stderr)
        # It did nobody any harm.
        second = self.start_with_secret(1, "a secret of enough characters")
        ended = self.wait_for_all([first, second])
        self.assert_all(ended, 0)
        self.assertEqual(ended[0].stderr.count("was turned away"), 2, ended[0])

    def test_a_secret_that_is_too_short_is_refused(self):
        ended = self.start_with_secret(0, "short").wait()
        self.assertEqual(ended.code, 64, ended)
        self.assertIn("KEEL_JOB_SECRET has 5 characters", ended.stderr)

    def test_a_node_that_never_comes_is_named(self):
        ended = self.start_node(0, "true", "--rdzv-conf", "join_timeout=1", nodes=2).wait()
        self.assertEqual(ended.code, UNAVAILABLE, ended)
        self.assertIn("node(s) 1 did not join", ended.stderr)

    def test_a_store_that_never_comes_is_named(self):
        ended = self.start_node(1, "true", "--rdzv-conf", "join_timeout=1", nodes=2).wait()
        self.assertEqual(ended.code, UNAVAILABLE, ended)
        self.assertIn(f"127.0.0.1:{self.port}", ended.stderr)

    def test_a_signal_ends_the_wait_for_the_others(self):
        for node in range(2):
            launched = self.start_node(node, "true", nodes=2)
            # The signal is taken once the launcher has blocked it.
            self.wait_until(lambda: blocks(launched.process.pid, signal.SIGTERM), "the launcher is up")
            launched.process.send_signal(signal.SIGTERM)
            ended = launched.wait()
            self.assertEqual(ended.code, 128 + signal.SIGTERM)
            self.assertIn("told to stop by signal 15 (Terminated) while it waited for other nodes", ended.stderr)


def blocks(pid, number):
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        [mask] = [int(line.split()[1], 16) for line in status if line.startswith("SigBlk")]
    return bool(mask >> (number - 1) & 1)


if __name__ == "__main__":
    unittest.main()
