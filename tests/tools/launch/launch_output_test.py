"""Output of ranks: prefixed line by line, teed into files byte by byte."""

import signal
import subprocess
import unittest

import launch_support
from launch_support import harness


class Output(launch_support.LaunchTest):
    def test_each_line_has_its_rank(self):
        ended = self.run_ranks("echo out $RANK; echo err $RANK >&2; echo; echo last $RANK", "--nproc-per-node", 3)
        self.assertEqual(ended.code, 0, ended)
        for rank in range(3):
            own = [line for line in ended.stdout.splitlines() if line.startswith(f"[rank{rank}]:")]
            self.assertEqual(own, [f"[rank{rank}]: out {rank}", f"[rank{rank}]: ", f"[rank{rank}]: last {rank}"])
            self.assertIn(f"[rank{rank}]: err {rank}", ended.stderr.splitlines())
        self.assertNotIn("err", ended.stdout)

    def test_a_line_in_pieces_stays_one(self):
        script = 'printf "a$RANK"; sleep 0.2; printf "b$RANK"; sleep 0.2; echo "c$RANK"'
        ended = self.run_ranks(script, "--nproc-per-node", 2)
        self.assertEqual(sorted(ended.stdout.splitlines()), ["[rank0]: a0b0c0", "[rank1]: a1b1c1"])

    def test_a_last_line_without_end(self):
        ended = self.run_ranks("printf unfinished; exit 3")
        self.assertEqual(ended.stdout, "[rank0]: unfinished\n")
        self.assertEqual(ended.code, 3)

    def test_a_line_longer_than_any_buffer(self):
        length = 300_000
        script = f"head -c {length} /dev/zero | tr '\\0' x; echo; echo next"
        ended = self.run_ranks(script, "--log-dir", self.folder / "logs")
        lines = ended.stdout.splitlines()
        self.assertEqual(lines[-1], "[rank0]: next")
        self.assertTrue(all(line.startswith("[rank0]: ") for line in lines))
        self.assertEqual("".join(line[len("[rank0]: ") :] for line in lines[:-1]), "x" * length)
        [path] = self.folder.glob("logs/*/attempt_0/0/stdout.log")
        self.assertEqual(path.read_text(), "x" * length + "\nnext\n")

    def test_any_bytes(self):
        ended = self.run_ranks(r"printf 'a\000b\377c\r\n'", "--log-dir", self.folder / "logs")
        self.assertEqual(ended.code, 0)
        [path] = self.folder.glob("logs/*/attempt_0/0/stdout.log")
        self.assertEqual(path.read_bytes(), b"a\0b\xffc\r\n")

    def test_log_files_of_every_rank_and_attempt(self):
        # They wait for each other, so that none is ended before it has written.
        script = (
            'echo "out $RANK $TORCHELASTIC_RESTART_COUNT"; echo "err $RANK" >&2; '
            'logs="$0/logs/job/attempt_$TORCHELASTIC_RESTART_COUNT"; '
            'while [ "$(cat "$logs"/*/std*.log 2> /dev/null | wc -l)" != 4 ]; do sleep 0.02; done; '
            '[ "$TORCHELASTIC_RESTART_COUNT" = 1 ]'
        )
        logs = ("--log-dir", self.folder / "logs", "--rdzv-id", "job")
        ended = self.run_ranks(script, "--nproc-per-node", 2, "--max-restarts", 1, *logs)
        self.assertEqual(ended.code, 0, ended)
        for attempt in range(2):
            for rank in range(2):
                folder = self.folder / "logs" / "job" / f"attempt_{attempt}" / str(rank)
                self.assertEqual((folder / "stdout.log").read_text(), f"out {rank} {attempt}\n")
                self.assertEqual((folder / "stderr.log").read_text(), f"err {rank}\n")
                self.assertIn(f"[rank{rank}]: out {rank} {attempt}", ended.stdout)

    def test_redirects_are_silent_here(self):
        ended = self.run_ranks("echo out; echo err >&2", "--redirects", 3, "--log-dir", self.folder / "logs")
        self.assertEqual((ended.stdout, ended.stderr), ("", ""))
        [path] = self.folder.glob("logs/*/attempt_0/0/stderr.log")
        self.assertEqual(path.read_text(), "err\n")

    def test_logs_that_cannot_be_written_are_refused(self):
        (self.folder / "logs").touch()
        ended = self.run_ranks("echo out", "--log-dir", self.folder / "logs")
        self.assertNotEqual(ended.code, 0)
        self.assertIn(str(self.folder / "logs"), ended.stderr)

    def test_a_filter_shows_only_its_ranks(self):
        ended = self.run_ranks("echo $RANK", "--nproc-per-node", 3, "--local-ranks-filter", "0,2")
        self.assertEqual(sorted(ended.stdout.splitlines()), ["[rank0]: 0", "[rank2]: 2"])

    def test_a_rank_that_never_pauses_does_not_deafen_the_launcher(self):
        # Passing on lines takes longer than writing them: there is always more to read. Still the failure of
        # another rank must be seen, and signals heard.
        options = dict(stdout=subprocess.DEVNULL)
        ended = self.run_ranks('[ "$RANK" = 0 ] && exec yes; sleep 0.5; exit 9', "--nproc-per-node", 2, **options)
        self.assertEqual(ended.code, 9)
        launched = self.start('echo $$ > "$0/pid.$RANK"; exec yes', **options)
        self.pids(1)
        launched.process.send_signal(signal.SIGTERM)
        self.assertEqual(launched.wait().code, 128 + signal.SIGTERM)

    def test_a_pipe_that_outlives_its_rank_holds_nothing_up(self):
        ended = self.run_ranks(
            'setsid sh -c \'echo $$ > "$1/pid.far"; exec sleep 600\' far "$0" & '
            'while [ ! -s "$0/pid.far" ]; do sleep 0.02; done; printf rest'
        )
        self.addCleanup(harness.kill, self.pids(1)["far"])
        self.assertEqual((ended.code, ended.stdout), (0, "[rank0]: rest\n"))

    def test_ranks_inherit_nothing_open_but_their_streams(self):
        # No pipeline: while the shell begins one, it holds its pipe's end itself.
        ended = self.run_ranks("readlink /proc/$$/fd/0; ls /proc/$$/fd; true")
        self.assertEqual(ended.stdout.splitlines(), ["[rank0]: " + line for line in ["/dev/null", "0", "1", "2"]])


if __name__ == "__main__":
    unittest.main()
