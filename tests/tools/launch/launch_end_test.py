"""How a job ends: exit codes, root causes, restarts, signals, and nothing left running."""

import json
import os
import re
import signal
import sys
import unittest

import launch_support
from launch_support import harness

# Writes what torch.distributed.elastic's error handler would, then ends: fail MESSAGE TIME CODE.
FAIL = (
    "fail() { printf '{\"message\": {\"message\": \"%s\", \"extraInfo\": {\"timestamp\": \"%s\"}}}' \"$1\" \"$2\" "
    '> "$TORCHELASTIC_ERROR_FILE"; exit "$3"; }; '
)
ALL_STARTED = 'echo $$ > "$0/pid.$RANK"; while [ "$(ls "$0"/pid.* | wc -l)" != "$WORLD_SIZE" ]; do sleep 0.02; done; '


class ExitCode(launch_support.LaunchTest):
    def test_passed_through(self):
        for code in (0, 1, 3, 65, 75, 255):
            self.assertEqual(self.run_ranks(f"exit {code}").code, code)

    def test_of_a_signal(self):
        for number in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGBUS):
            ended = self.run_ranks(f"kill -{number.name[3:]} $$")
            self.assertEqual(ended.code, 128 + number, ended)
            self.assertIn(f"rank 0 was killed by {number.name}", ended.stderr)
            self.assertEqual("a file that it had mapped" in ended.stderr, number == signal.SIGBUS, ended.stderr)

    def test_of_the_rank_that_fails_not_of_those_that_are_ended(self):
        ended = self.run_ranks(ALL_STARTED + '[ "$RANK" = 2 ] && exit 7; exec sleep 600', "--nproc-per-node", 3)
        self.assertEqual(ended.code, 7, ended)
        self.assertIn("rank 2 ended with exit code 7", ended.stderr)
        self.assert_dead(self.pids(3).values())

    def test_all_must_do_well(self):
        ended = self.run_ranks('[ "$RANK" = 0 ] || { sleep 0.5; exit 4; }', "--nproc-per-node", 2)
        self.assertEqual(ended.code, 4, ended)

    def test_a_program_that_is_not_there(self):
        arguments = [launch_support.KEEL, "launch", "--nproc-per-node", "2", "--", "/no/program"]
        ended = launch_support.Launched(self, arguments).wait()
        self.assertEqual(ended.code, 66, ended)
        self.assertIn("/no/program", ended.stderr)

    def test_preempted_is_no_failure(self):
        # The others get the time to leave by themselves, which is longer than after a failure.
        script = 'trap "echo ended >&2; exit 1" TERM; ' + ALL_STARTED + '[ "$RANK" = 0 ] || sleep 4; exit 75'
        ended = self.run_ranks(script, "--nproc-per-node", 2, "--max-restarts", 3)
        self.assertEqual(ended.code, 75, ended)
        self.assertNotIn("ended", ended.stderr)
        self.assertIn("preempted: the state is saved", ended.stderr)
        self.assertNotIn("restart 1", ended.stderr)


class WhatARankLeaves(launch_support.LaunchTest):
    """A program that is killed with its rank, as tools and verifiers are, has started others."""

    # Ends with the process that has started it, leads a group, starts two: one in its group, one in a session of its own.
    TOOL = (
        "import ctypes, os, subprocess; os.setpgid(0, 0); ctypes.CDLL(None).prctl(1, 9); run = subprocess.Popen\n"
        "def say(name, pid):\n    open(os.environ['SAYS'] + name, 'w').write(f'{pid}\\n')\n"
        "say('helper', run(['sleep', '600']).pid); say('server', run(['sleep', '600'], start_new_session=True).pid)\n"
        "say('tool', os.getpid()); run(['sleep', '600']).wait()"
    )

    def test_ends_but_for_a_server_of_its_own(self):
        script = f'export SAYS="$0/pid."; {sys.executable} -c "$TOOL" & while [ ! -e "$0/kill" ]; do sleep 0.02; done; kill -9 $$'
        launched = self.start(script, env={"TOOL": self.TOOL})
        pids = self.pids(3)
        self.addCleanup(os.kill, pids["server"], signal.SIGKILL)
        self.assertTrue(all(map(launch_support.alive, pids.values())))
        (self.folder / "kill").touch()
        self.assertEqual(launched.wait().code, 128 + signal.SIGKILL)
        self.assertFalse(launch_support.alive(pids["tool"]))
        self.assertFalse(launch_support.alive(pids["helper"]), "what a tool has started is left behind")
        self.assertTrue(launch_support.alive(pids["server"]))


class RanksThatWorkForAnotherJob(launch_support.LaunchTest):
    """`--roles rollout:N`, which `keel rollout --join` implies."""

    ONCE = ALL_STARTED + 'mkdir "$0/again.$RANK" 2>/dev/null && first=1; '

    def test_one_is_started_again_alone(self):
        # Rank 1 fails at first; rank 0 ends well after rank 1 has done its work.
        script = self.ONCE + '[ "$RANK" = 1 ] && { [ "$first" = 1 ] && exit 3; touch "$0/done"; exit 0; }; ' \
            'while [ ! -e "$0/done" ]; do sleep 0.02; done; [ "$first" = 1 ]'
        ended = self.run_ranks(script, "--nproc-per-node", 2, "--roles", "rollout:2", "--max-restarts", 1)
        self.assertEqual(ended.code, 0, ended)
        self.assertIn("rollout rank 1 ended with exit code 3; it is started again", ended.stderr)
        self.assertNotIn("rank 0", ended.stderr)

    def test_one_that_cannot_be_started_again_is_the_failure_when_the_others_are_done(self):
        for restarts, code in ((0, 3), (1, 3)):
            # Rank 0 works on until the other has failed for the last time, and for a while.
            tries = f'"$0/tries.{restarts}"'
            script = f'[ "$RANK" = 1 ] && {{ echo >> {tries}; exit {code}; }}; ' \
                f'while [ "$(cat {tries} 2> /dev/null | wc -l)" != {restarts + 1} ]; do sleep 0.02; done; sleep 1.5; touch "$0/done.{restarts}"'
            ended = self.run_ranks(script, "--nproc-per-node", 2, "--roles", "rollout:2", "--max-restarts", restarts)
            self.assertEqual(ended.code, code, ended)
            self.assertIn("the others go on", ended.stderr)
            self.assertIn(f"rank 1 ended with exit code {code}", ended.stderr)
            self.assertNotIn("were ended", ended.stderr)
            self.assertTrue((self.folder / f"done.{restarts}").exists(), ended)
            self.assertEqual(ended.stderr.count("is started again"), restarts, ended)

    def test_what_would_happen_to_all_ends_all(self):
        ended = self.run_ranks(ALL_STARTED + '[ "$RANK" = 1 ] && exit 78; exec sleep 600', "--nproc-per-node", 2, "--roles", "rollout:2",
                               "--max-restarts", 5)
        self.assertEqual(ended.code, 78, ended)
        self.assertIn("rank 1 ended with exit code 78", ended.stderr)
        self.assertNotIn("is started again", ended.stderr)
        self.assert_dead(self.pids(2).values())

    def test_all_are_told_to_stop(self):
        launched = self.start('trap "exit 0" TERM; ' + ALL_STARTED + 'while :; do sleep 0.02; done', "--nproc-per-node", 2, "--roles", "rollout:2",
                                    "--max-restarts", 3)
        pids = self.pids(2)
        launched.process.send_signal(signal.SIGTERM)
        self.assertEqual(launched.wait().code, 0)
        self.assert_dead(pids.values())

    def test_none_is_started_again_after_they_were_told_to_stop(self):
        for number in (signal.SIGTERM, signal.SIGUSR1):
            tries = self.folder / f"tries.{number}"
            launched = self.start(f'trap "exit 0" TERM USR1; [ "$RANK" = 1 ] && {{ echo >> {tries}; exit 3; }}; while :; do sleep 0.02; done',
                                  "--nproc-per-node", 2, "--roles", "rollout:2", "--max-restarts", 9)  # fmt: skip
            while "it is started again in 3.2 s" not in launched.process.stderr.readline():
                self.assertIsNone(launched.process.poll())
            launched.process.send_signal(number)
            self.assertEqual(launched.wait().code, 0)
            self.assertEqual(tries.read_text(), 5 * "\n")


class RootCause(launch_support.LaunchTest):
    def cause(self, ended):
        return re.findall("root cause: (.*)", ended.stderr)

    def test_a_cause_of_several_lines_is_said_on_one(self):
        message = "does not hold together:\\n  world size 2 != 6: start 6\\n  data.train_files is empty\\n"
        script = f"printf %s '{{\"message\": \"{message}\"}}' > \"$TORCHELASTIC_ERROR_FILE\"; exit 78"
        ended = self.run_ranks(script)
        expected = "does not hold together: world size 2 != 6: start 6; data.train_files is empty"
        self.assertEqual(self.cause(ended), [expected])

    def test_is_what_the_first_failing_rank_wrote(self):
        script = FAIL + 'trap "fail \\"lost rank 1\\" 1700000001 1" TERM; ' + ALL_STARTED + (
            '[ "$RANK" = 1 ] && fail "the disk is full" 1700000000 74; sleep 600 & wait'
        )
        ended = self.run_ranks(script, "--nproc-per-node", 3)
        self.assertEqual((ended.code, self.cause(ended)), (74, ["the disk is full"]), ended)
        self.assertIn("rank 1 ended with exit code 74", ended.stderr)

    def test_is_who_reports_the_earlier_time_even_if_it_ends_later(self):
        # A rank that fails may take its time to end, and others end of it meanwhile.
        script = 'trap "" TERM; ' + FAIL + ALL_STARTED + (
            '[ "$RANK" = 0 ] && fail "connection reset" 1700000009 5; sleep 0.5; fail "not a number" 1700000001 6'
        )
        ended = self.run_ranks(script, "--nproc-per-node", 2)
        self.assertEqual((ended.code, self.cause(ended)), (6, ["not a number"]), ended)

    def test_is_not_who_lost_a_peer(self):
        script = 'trap "" TERM; ' + FAIL + ALL_STARTED + (
            '[ "$RANK" = 0 ] && fail "lost a peer" 1700000001 69; sleep 0.5; fail "not a number" 1700000001 6'
        )
        ended = self.run_ranks(script, "--nproc-per-node", 2)
        self.assertEqual((ended.code, self.cause(ended)), (6, ["not a number"]), ended)

    def test_is_who_was_killed_from_outside(self):
        # It can report nothing, and those that die of it do so at once.
        script = FAIL + ALL_STARTED + (
            '[ "$RANK" = 1 ] && exec sleep 600; '
            'read pid < "$0/pid.1"; while kill -0 "$pid" && ! grep -q "State:.Z" "/proc/$pid/status"; do :; done; '
            'fail "lost rank 1" 1700000001 1'
        )
        launched = self.start(script, "--nproc-per-node", 3)
        harness.kill(self.pids(3)["1"])
        ended = launched.wait()
        self.assertEqual((ended.code, self.cause(ended)), (128 + signal.SIGKILL, []), ended)
        self.assertIn("rank 1 was killed by SIGKILL", ended.stderr)

    def test_is_found_in_files_of_other_shapes(self):
        for content, expected in (
            ({"message": "plain"}, ["plain"]),
            ({"message": {"message": "no time"}}, ["no time"]),
            ({"message": {"message": "odd time", "extraInfo": {"timestamp": [1]}}}, ["odd time"]),
            ({"message": {"message": "odd info", "extraInfo": 3}}, ["odd info"]),
            ({"message": 3}, []),
            ([], []),
            (None, []),
        ):
            text = "" if content is None else json.dumps(content)
            ended = self.run_ranks(f"echo '{text}' > $TORCHELASTIC_ERROR_FILE; exit 3")
            self.assertEqual((ended.code, self.cause(ended)), (3, expected), ended)

    def test_names_the_logs(self):
        ended = self.run_ranks(FAIL + 'fail "why" 1 2', "--log-dir", self.folder / "logs", "--rdzv-id", "job")
        self.assertIn(f"its output: {self.folder}/logs/job/attempt_0/0", ended.stderr)
        [report] = self.folder.glob("logs/job/attempt_0/0/error.json")
        self.assertEqual(json.loads(report.read_text())["message"]["message"], "why")

    def test_leaves_no_scratch_files(self):
        self.run_ranks(FAIL + 'fail "why" 1 2', "--nproc-per-node", 2, "--max-restarts", 1)
        self.assertEqual(list(self.folder.glob("keel_launch_*")), [])

    def test_the_next_launcher_removes_the_scratch_files_of_one_that_was_killed(self):
        killed = self.start('echo $$ > $0/pid.killed; touch $KEEL_STATUS_FILE; exec sleep 100')
        lives = self.start('echo $$ > $0/pid.lives; exec sleep 100')
        pids = self.pids(2)
        left = set(self.folder.glob("keel_launch_*"))
        os.kill(killed.process.pid, signal.SIGKILL)
        killed.process.wait()
        self.assert_dead([pids["killed"]])
        self.run_ranks("exit 0")
        [one] = self.folder.glob("keel_launch_*")  # of the one that lives
        self.assertEqual(len(left), 2)
        os.kill(lives.process.pid, signal.SIGTERM)
        lives.wait()
        self.assertFalse(one.exists())


class Restart(launch_support.LaunchTest):
    COUNT = 'echo x >> "$0/attempts.$RANK"; '

    def attempts(self, rank=0):
        return len((self.folder / f"attempts.{rank}").read_text().split())

    def test_up_to_the_limit(self):
        ended = self.run_ranks(self.COUNT + "exit 3", "--max-restarts", 2)
        self.assertEqual((ended.code, self.attempts()), (3, 3), ended)
        self.assertIn("restart 2 of 2", ended.stderr)

    def test_all_ranks_of_an_attempt(self):
        script = self.COUNT + (
            '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ] && exit 0; '
            'while [ ! -e "$0/attempts.1" ]; do sleep 0.02; done; '
            '[ "$RANK" = 0 ] && exit 1; exec sleep 600'
        )
        ended = self.run_ranks(script, "--nproc-per-node", 2, "--max-restarts", 5)
        self.assertEqual((ended.code, self.attempts(0), self.attempts(1)), (0, 2, 2), ended)

    def test_not_when_it_cannot_help(self):
        for code in (64, 65, 66, 75, 78):
            with self.subTest(code=code):
                (self.folder / "attempts.0").unlink(missing_ok=True)
                ended = self.run_ranks(self.COUNT + f"exit {code}", "--max-restarts", 2)
                self.assertEqual((ended.code, self.attempts()), (code, 1), ended)

    def test_not_after_a_signal_to_the_launcher(self):
        launched = self.start('echo $$ > "$0/pid.$RANK"; exec sleep 600', "--max-restarts", 3)
        self.pids(1)
        launched.process.send_signal(signal.SIGTERM)
        ended = launched.wait()
        self.assertEqual(ended.code, 128 + signal.SIGTERM, ended)
        self.assertNotIn("restart 1", ended.stderr)


class NothingIsLeft(launch_support.LaunchTest):
    GRANDCHILD = 'sh -c \'trap "" TERM; echo $$ > "$1/pid.far$RANK"; while :; do sleep 600; done\' far "$0" & '
    READY = 'while [ ! -s "$0/pid.far$RANK" ]; do sleep 0.02; done; echo $$ > "$0/pid.$RANK"; '

    def test_grandchildren_die_with_their_rank(self):
        # Also of a rank that did well, while another goes on.
        script = self.GRANDCHILD + self.READY + '[ "$RANK" = 1 ] && while [ ! -e "$0/go" ]; do sleep 0.02; done; exit 0'
        launched = self.start(script, "--nproc-per-node", 2)
        pids = self.pids(4)
        self.assert_dead([pids["far0"]])
        self.assertTrue(launch_support.alive(pids["far1"]))
        (self.folder / "go").touch()
        self.assertEqual(launched.wait().code, 0)
        self.assert_dead(pids.values())

    def test_grandchildren_of_ranks_that_fail_or_are_ended(self):
        script = self.GRANDCHILD + self.READY + (
            'while [ "$(ls "$0"/pid.? | wc -l)" != 2 ]; do sleep 0.02; done; [ "$RANK" = 0 ] && exit 3; wait'
        )
        ended = self.run_ranks(script, "--nproc-per-node", 2)
        self.assertEqual(ended.code, 3, ended)
        self.assert_dead(self.pids(4).values())

    def test_ranks_that_ignore_sigterm_are_killed(self):
        script = 'trap "" TERM; ' + ALL_STARTED + '[ "$RANK" = 0 ] && exit 3; while :; do sleep 600; done'
        ended = self.run_ranks(script, "--nproc-per-node", 2)
        self.assertEqual(ended.code, 3, ended)
        self.assert_dead(self.pids(2).values())

    def test_ranks_that_ignore_a_passed_on_signal_are_killed(self):
        script = 'trap "" TERM; echo $$ > "$0/pid.$RANK"; while :; do sleep 600; done'
        launched = self.start(script, "--nproc-per-node", 2, "--shutdown-timeout", 1)
        pids = self.pids(2)
        launched.process.send_signal(signal.SIGTERM)
        self.assertEqual(launched.wait().code, 128 + signal.SIGKILL)
        self.assert_dead(pids.values())

    def test_a_second_signal_is_passed_on_too(self):
        # What it means is for the ranks to say, who may be in the middle of a save.
        script = (
            'n=0; trap \'n=$((n + 1)); echo $n > "$0/seen.$RANK"; [ $n = 1 ] || exit 3\' TERM; '
            'echo $$ > "$0/pid.$RANK"; while :; do sleep 0.05; done'
        )
        launched = self.start(script, "--nproc-per-node", 2, "--shutdown-timeout", 100000)
        pids = self.pids(2)
        launched.process.send_signal(signal.SIGTERM)
        self.wait_until(lambda: len(list(self.folder.glob("seen.*"))) == 2, "the first signal has arrived")
        launched.process.send_signal(signal.SIGTERM)
        self.assertEqual(launched.wait().code, 3)
        self.assert_dead(pids.values())

    def test_a_stopped_rank_is_killed(self):
        script = ALL_STARTED + '[ "$RANK" = 1 ] && { kill -STOP $$; exit 0; }; sleep 0.3; exit 3'
        ended = self.run_ranks(script, "--nproc-per-node", 2)
        self.assertEqual(ended.code, 3, ended)
        self.assert_dead(self.pids(2).values())

    def test_a_killed_launcher_leaves_no_ranks(self):
        launched = self.start('trap "" TERM HUP; echo $$ > "$0/pid.$RANK"; exec sleep 600', "--nproc-per-node", 3)
        pids = self.pids(3)
        launched.process.kill()
        self.assertEqual(launched.wait().code, -signal.SIGKILL)
        self.assert_dead(pids.values())


class Signals(launch_support.LaunchTest):
    def test_are_passed_on_to_every_rank(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            with self.subTest(number.name):
                name = number.name[3:]
                script = f'trap "exit 75" {name}; echo $$ > "$0/pid.$RANK"; while :; do sleep 0.05; done'
                launched = self.start(script, "--nproc-per-node", 2)
                self.pids(2)
                launched.process.send_signal(number)
                self.assertEqual(launched.wait().code, 75)
                for path in self.folder.glob("pid.*"):
                    path.unlink()


    def test_a_rank_that_crashes_of_one_is_the_cause(self):
        script = (
            '[ "$RANK" = 0 ] && { trap "kill -ABRT \\$\\$" TERM; } || trap "exit 69" TERM; '
            'echo $$ > "$0/pid.$RANK"; while :; do sleep 0.05; done'
        )
        launched = self.start(script, "--nproc-per-node", 2)
        self.pids(2)
        launched.process.send_signal(signal.SIGTERM)
        ended = launched.wait()
        self.assertEqual(ended.code, 128 + signal.SIGABRT, ended)
        self.assertIn("rank 0 was killed by SIGABRT", ended.stderr)


class Refused(launch_support.LaunchTest):
    def test_with_64_and_a_word_that_helps(self):
        for arguments, expected in (
            (["--nproc-per-nod", "2", "train", "c.yaml"], "did you mean --nproc-per-node?"),
            (["--nproc-per-node", "x", "train", "c.yaml"], "--nproc-per-node x: expected a number"),
            (["--nproc-per-node", "0", "train", "c.yaml"], "--nproc-per-node 0: expected at least 1"),
            (["--nnodes", "2", "--node-rank", "2", "--master-addr", "a", "train"], "--node-rank 2: expected 0 to 1"),
            (["--nnodes", "2", "train"], "--master-addr"),
            (["--max-restarts", "-1", "train"], "--max-restarts -1: expected at least 0"),
            (["--master-port", "70000", "train"], "--master-port 70000: expected 0 to 65535"),
            (["--redirects", "3", "train"], "--log-dir"),
            (["--nproc-per-node", "2"], "nothing to run"),
            ([], "nothing to run"),
        ):
            ended = launch_support.Launched(self, [launch_support.KEEL, "launch", *arguments]).wait()
            self.assertEqual(ended.code, 64, f"{arguments}: {ended}")
            self.assertIn(expected, ended.stderr)

    def test_help(self):
        ended = launch_support.Launched(self, [launch_support.KEEL, "launch", "--help"]).wait()
        self.assertEqual(ended.code, 0, ended)
        for part in ("--nproc-per-node", "--max-restarts", "PET_", "Examples:"):
            self.assertIn(part, ended.stdout)


if __name__ == "__main__":
    unittest.main()
