"""The shells complete keel's command lines: bash and zsh with a terminal, into which a line is typed and the key is pressed; fish, which
has a command for it. And man reads the pages of the manual without a complaint. A shell that is not here is skipped, and said."""

import os
import pathlib
import pty
import select
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))
import harness  # noqa: E402

KEEL = pathlib.Path(harness.KEEL)
READY = "<ready>"


class Shells(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-completion-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        (cls.folder / "bin").mkdir()
        (cls.folder / "bin" / "keel").symlink_to(KEEL)
        for name in ("my run.yaml", "only.yaml"):
            (cls.folder / name).write_text("{}\n")
        (cls.folder / "runs").mkdir()
        cls.environment = {"PATH": f"{cls.folder}/bin:/usr/bin:/bin", "HOME": str(cls.folder), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
        for shell, name in (("bash", "keel.bash"), ("zsh", "_keel"), ("fish", "keel.fish")):
            (cls.folder / name).write_text(harness.keel("completion", shell).stdout)

    # What is typed before the key is pressed, and how the line then reads, word by word.
    LINES = (
        ("keel trai", ["keel", "train"]),
        ("keel ckpt inspe", ["keel", "ckpt", "inspect"]),
        ("keel data make --fo", None),  # --force or --form: not yet a word
        ("keel data make --form sf", ["keel", "data", "make", "--form", "sft"]),
        ("keel data make --form=sf", ["keel", "data", "make", "--form=sft"]),
        ("keel train onl", ["keel", "train", "only.yaml"]),
        ("keel train only.yaml trainer.see", ["keel", "train", "only.yaml", "trainer.seed="]),
        ("keel train only.yaml trainer.device=cu", ["keel", "train", "only.yaml", "trainer.device=cuda"]),
        ("keel train only.yaml ~trainer.see", ["keel", "train", "only.yaml", "~trainer.seed"]),
        ("keel train only.yaml trainer.seed=1 trainer.default_local_dir=ru",
         ["keel", "train", "only.yaml", "trainer.seed=1", "trainer.default_local_dir=runs/"]),
        ("keel launch --nproc-per-node 2 train only.yaml trainer.see",
         ["keel", "launch", "--nproc-per-node", "2", "train", "only.yaml", "trainer.seed="]),
        ("keel launch --rdzv-backend=st", ["keel", "launch", "--rdzv-backend=static"]),
    )  # fmt: skip

    def typed(self, command, begin, lines):
        """The words of each line once the key has been pressed: Control-A, and a command that prints them is put before it."""
        process, terminal = pty.fork()
        if process == 0:
            os.chdir(self.folder)
            os.execvpe(command[0], command, self.environment)
        self.addCleanup(os.close, terminal)
        try:
            os.write(terminal, begin.encode())
            self.until(terminal, READY)
            found = []
            for line in lines:
                os.write(terminal, f"{line}\t".encode())
                self.quiet(terminal)
                os.write(terminal, b"\x01show \x05\n")
                said = self.until(terminal, READY)
                found.append(said.split("<begin>")[1].split("<end>")[0].split("|")[1:])
            return found
        finally:
            os.kill(process, 9)
            os.waitpid(process, 0)

    def until(self, terminal, word):
        said, end = "", time.monotonic() + harness.LIMIT_S
        while word not in said:
            if time.monotonic() > end or not select.select([terminal], [], [], harness.LIMIT_S)[0]:
                self.fail(f"the shell said only {said!r}")
            said += os.read(terminal, 65536).decode(errors="replace").replace("\r", "")
        return said

    def quiet(self, terminal):
        """Until the shell has taken the key: it takes what is typed next in order anyway."""
        while select.select([terminal], [], [], 0.3)[0]:
            os.read(terminal, 65536)

    def check(self, found, lines=LINES):
        for (line, words), said in zip(lines, found, strict=True):
            with self.subTest(line):
                self.assertEqual(said, words if words is not None else line.split(" ")[:-1] + ["--for"])

    # In two parts, so that the echo of the definition is not taken for the output.
    SHOW = "show() { printf '%s' '<be''gin>'; printf '|%s' \"$@\"; printf '%s\\n' '<e''nd>' '<rea''dy>'; }\nprintf '%s\\n' '<rea''dy>'\n"

    def test_bash(self):
        begin = "PS1= ; PS2= ; bind 'set bell-style none' ; set +H ; unset HISTFILE ; source ./keel.bash\n" + self.SHOW
        lines = [line for line, _ in self.LINES]
        self.check(self.typed(["bash", "--norc", "--noprofile", "-i"], begin, lines))
        [found] = self.typed(["bash", "--norc", "--noprofile", "-i"], begin, ["keel train my"])
        self.assertEqual(found, ["keel", "train", "my run.yaml"])

    def test_bash_offers_what_there_is(self):
        """COMPREPLY, as bash's own completion fills it."""
        script = """
        source ./keel.bash
        complete -p keel
        COMP_LINE=$1 COMP_POINT=${#1}
        read -ra COMP_WORDS <<< "$1"
        [[ $1 == *" " ]] && COMP_WORDS+=("")
        COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
        _keel
        printf '%s\\n' "${COMPREPLY[@]}"
        """

        def offered(line):
            done = subprocess.run(["bash", "-c", script, "bash", line], cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True)
            first, *rest = done.stdout.splitlines()
            self.assertEqual(first, "complete -F _keel keel")
            return rest

        shown = harness.keel("--help").stdout.split("Subcommands:\n")[1].split("\n\n")[0]
        commands = sorted(line.split()[0] for line in shown.splitlines() if line.startswith("  ") and line[2] != " ")
        self.assertEqual(offered("keel "), sorted([*commands, "help"]))
        self.assertEqual(offered("keel train only.yaml trainer.device="), ["auto", "cpu", "cuda"])
        self.assertEqual(offered("keel nonsense "), [""])

    def test_zsh(self):
        if shutil.which("zsh") is None:
            self.skipTest("SKIPPED: zsh is not installed")
        self.assertEqual(subprocess.run(["zsh", "-n", self.folder / "_keel"], check=False).returncode, 0)
        begin = (
            "PS1= ; PS2= ; PROMPT_SP= ; unsetopt prompt_cr prompt_sp beep list_beep auto_remove_slash ; setopt no_list_ambiguous ; fpath=(" + str(self.folder) + " $fpath) ; "
            "autoload -Uz compinit ; compinit -u -D ; bindkey -e ; zstyle ':completion:*' menu no\n" + self.SHOW
        )
        # Unquoted, ~ begins a user's name there.
        lines = [(line, words) for line, words in self.LINES if "~" not in line]
        self.check(self.typed(["zsh", "-f", "-i"], begin, [line for line, _ in lines]), lines)

    def test_fish(self):
        if shutil.which("fish") is None:
            self.skipTest("SKIPPED: fish is not installed")
        self.assertEqual(subprocess.run(["fish", "--no-execute", self.folder / "keel.fish"], check=False).returncode, 0)
        for line, words in self.LINES:
            with self.subTest(line):
                done = subprocess.run(["fish", "--no-config", "-c", "source keel.fish; complete -C $argv[1]", line], cwd=self.folder,
                                      env=self.environment, capture_output=True, text=True, check=False)  # fmt: skip
                found = [text.split("\t")[0] for text in done.stdout.splitlines()]
                self.assertEqual(found, [words[-1]] if words else ["--force", "--form"], done.stderr)

    def test_the_manual_reads_without_a_complaint(self):
        pages = self.folder / "man"
        done = harness.keel("man", "--out", pages)
        self.assertEqual(done.returncode, 0, done)
        files = sorted(pages.rglob("*.[15]"))
        self.assertGreater(len(files), 30)
        readers = [["mandoc", "-T", "lint", "-W", "warning"], ["groff", "-man", "-ww", "-z", "-Tutf8"]]
        there = [reader for reader in readers if shutil.which(reader[0])]
        if not there:
            self.skipTest("SKIPPED: neither mandoc nor groff is installed")
        for reader in there:
            done = subprocess.run([*reader, *files], capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C.UTF-8"})
            # A page has the version, not a date: the same program makes the same page.
            said = [line for line in (done.stdout + done.stderr).splitlines() if "missing date" not in line]
            self.assertEqual(said, [], reader[0])


if __name__ == "__main__":
    unittest.main()
