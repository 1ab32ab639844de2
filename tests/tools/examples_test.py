"""The examples of jobs and the Dockerfiles, held by what can hold them where there is no cluster and no Docker: the batch script runs
on two nodes that are processes; the others start the very launchers that they name, with the addresses of this machine in place of
theirs; their YAML has the shape of its kind; what an image copies, installs and calls is there."""

import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import jsonschema
import yaml

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "e2e"))
import harness  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NODES = 2
# A program that stands in for a rank's work.
SAYS_ITS_RANK = ["--", "sh", "-c", 'echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK"']

NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 63}
# Of the Kubernetes API (core/v1), the fields that the examples have; another field is refused, as the server does.
POD = {
    "type": "object",
    "required": ["containers"],
    "additionalProperties": False,
    "properties": {
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never"]},
        "terminationGracePeriodSeconds": {"type": "integer", "minimum": 0},
        "securityContext": {"type": "object", "additionalProperties": False, "properties": {"fsGroup": {"type": "integer"}}},
        "containers": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "image"],
                "additionalProperties": False,
                "properties": {
                    "name": NAME,
                    "image": {"type": "string"},
                    "command": {"type": "array", "items": {"type": "string"}},
                    "args": {"type": "array", "items": {"type": "string"}},
                    "env": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "additionalProperties": False,
                            "properties": {
                                "name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*$"},
                                "value": {"type": "string"},
                                "valueFrom": {
                                    "type": "object",
                                    "minProperties": 1,
                                    "maxProperties": 1,
                                    "additionalProperties": False,
                                    "properties": {
                                        "secretKeyRef": {
                                            "type": "object",
                                            "required": ["name", "key"],
                                            "additionalProperties": False,
                                            "properties": {"name": NAME, "key": {"type": "string"}},
                                        },
                                        "fieldRef": {
                                            "type": "object",
                                            "required": ["fieldPath"],
                                            "additionalProperties": False,
                                            "properties": {"fieldPath": {"type": "string"}},
                                        },
                                    },
                                },
                            },
                        },
                    },
                    "ports": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["containerPort"],
                            "additionalProperties": False,
                            "properties": {"containerPort": {"type": "integer", "minimum": 1, "maximum": 65535}},
                        },
                    },
                    "resources": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {"limits": {"type": "object"}, "requests": {"type": "object"}},
                    },
                    "volumeMounts": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name", "mountPath"],
                            "additionalProperties": False,
                            "properties": {"name": NAME, "mountPath": {"type": "string", "pattern": "^/"}},
                        },
                    },
                },
            },
        },
        "volumes": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": False,
                "properties": {
                    "name": NAME,
                    "configMap": {"type": "object", "required": ["name"]},
                    "persistentVolumeClaim": {"type": "object", "required": ["claimName"]},
                    "emptyDir": {"type": "object", "properties": {"medium": {"enum": ["", "Memory"]}}},
                },
            },
        },
    },
}
TEMPLATE = {"type": "object", "required": ["spec"], "additionalProperties": False, "properties": {"metadata": {"type": "object"}, "spec": POD}}
METADATA = {"type": "object", "required": ["name"], "properties": {"name": NAME}}
REPLICA = {
    "type": "object",
    "required": ["replicas", "template"],
    "additionalProperties": False,
    "properties": {
        "replicas": {"type": "integer", "minimum": 1},
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": TEMPLATE,
    },
}
POD_FAILURES = {
    "type": "object",
    "required": ["rules"],
    "additionalProperties": False,
    "properties": {
        "rules": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["action"],
                "minProperties": 2,
                "maxProperties": 2,
                "additionalProperties": False,
                "properties": {
                    "action": {"enum": ["FailJob", "FailIndex", "Ignore", "Count"]},
                    "onExitCodes": {
                        "type": "object",
                        "required": ["operator", "values"],
                        "additionalProperties": False,
                        "properties": {"operator": {"enum": ["In", "NotIn"]}, "values": {"type": "array", "minItems": 1, "uniqueItems": True}},
                    },
                    "onPodConditions": {"type": "array", "minItems": 1},
                },
            },
        },
    },
}
PYTORCHJOB = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "kubeflow.org/v1"},
        "kind": {"const": "PyTorchJob"},
        "metadata": METADATA,
        "spec": {
            "type": "object",
            "required": ["pytorchReplicaSpecs"],
            "additionalProperties": False,
            "properties": {
                "nprocPerNode": {"type": "string"},
                "runPolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "cleanPodPolicy": {"enum": ["All", "Running", "None"]},
                        "backoffLimit": {"type": "integer"},
                        "ttlSecondsAfterFinished": {"type": "integer"},
                        "activeDeadlineSeconds": {"type": "integer"},
                        "suspend": {"type": "boolean"},
                    },
                },
                "pytorchReplicaSpecs": {
                    "type": "object",
                    "required": ["Master", "Worker"],
                    "additionalProperties": False,
                    "properties": {"Master": REPLICA, "Worker": REPLICA},
                },
            },
        },
    },
}
JOBSET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "jobset.x-k8s.io/v1alpha2"},
        "kind": {"const": "JobSet"},
        "metadata": METADATA,
        "spec": {
            "type": "object",
            "required": ["replicatedJobs"],
            "additionalProperties": False,
            "properties": {
                "network": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"enableDNSHostnames": {"type": "boolean"}, "subdomain": NAME, "publishNotReadyAddresses": {"type": "boolean"}},
                },
                "failurePolicy": {
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {
                        "maxRestarts": {"type": "integer"},
                        "rules": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["action"],
                                "additionalProperties": False,
                                "properties": {
                                    "action": {"enum": ["FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts"]},
                                    "onJobFailureReasons": {"type": "array", "items": {"enum": ["BackoffLimitExceeded", "PodFailurePolicy"]}},
                                },
                            },
                        },
                    },
                },
                "replicatedJobs": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "required": ["name", "template"],
                        "additionalProperties": False,
                        "properties": {
                            "name": NAME,
                            "replicas": {"type": "integer", "minimum": 1},
                            "template": {
                                "type": "object",
                                "required": ["spec"],
                                "additionalProperties": False,
                                "properties": {
                                    "spec": {
                                        "type": "object",
                                        "required": ["template"],
                                        "additionalProperties": False,
                                        "properties": {
                                            "completionMode": {"enum": ["Indexed", "NonIndexed"]},
                                            "parallelism": {"type": "integer"},
                                            "completions": {"type": "integer"},
                                            "backoffLimit": {"type": "integer"},
                                            "podFailurePolicy": POD_FAILURES,
                                            "template": TEMPLATE,
                                        },
                                    }
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}
SKYPILOT = {
    "type": "object",
    "required": ["run"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string"},
        "num_nodes": {"type": "integer", "minimum": 1},
        "resources": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"accelerators": {"type": "string", "pattern": r"^\w+:\d+$"}, "disk_size": {"type": "integer"}, "use_spot": {"type": "boolean"}},
        },
        "envs": {"type": "object", "additionalProperties": {"type": "string"}},
        "file_mounts": {
            "type": "object",
            "additionalProperties": {"type": "string"},  # no bucket, which has no rename
        },
        "volumes": {"type": "object", "additionalProperties": {"type": "string"}},
        "setup": {"type": "string"},
        "run": {"type": "string"},
    },
}

FAKE_SRUN = """#!{python}
# Starts the command on each node at the same time, as Slurm does for one task a node; the code is the greatest.
import os, subprocess, sys
if os.environ.get("FAKE_CODE"):
    sys.exit(int(os.environ["FAKE_CODE"]))
command = sys.argv[1:]
while command[0].startswith("--"):
    command.pop(0)
ranks = [
    subprocess.Popen(command, env={{**os.environ, "SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0"}})
    for node in range(int(os.environ["SLURM_NNODES"]))
]
sys.exit(max(rank.wait() for rank in ranks))
"""
FAKE_SCONTROL = """#!/bin/sh
if [ "$1 $2" = "show hostnames" ]; then printf '127.0.0.1\\nother\\n'; else echo "$@" > scontrol.txt; fi
"""


def load(path):
    return yaml.safe_load((EXAMPLES / path).read_text())


class Examples(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keel-examples-"))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        (self.bin / "keel").symlink_to(harness.KEEL)
        self.environment = {**harness.environment(), "PATH": f"{self.bin}:/usr/bin:/bin"}

    def program(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def launch_all(self, commands):
        """Each node's command, with this machine's addresses, one rank a node, and a rank's work that says its number."""
        port = harness.free_port()
        started = []
        for command, environment in commands:
            flags = []
            for word in command[: command.index("train")]:
                name = word.split("=")[0]
                word = {"--master-addr": "--master-addr=127.0.0.1", "--master-port": f"--master-port={port}",
                        "--nproc-per-node": "--nproc-per-node=1"}.get(name, word)  # fmt: skip
                flags.append(word)
            self.assertEqual(flags[:2], ["keel", "launch"])
            names = {flag.split("=")[0] for flag in flags}
            self.assertLessEqual({"--nnodes", "--node-rank", "--master-addr", "--master-port", "--nproc-per-node"}, names)
            started.append(subprocess.Popen([*flags, *SAYS_ITS_RANK], env={**self.environment, **environment}, text=True, cwd=self.folder,
                                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT))  # fmt: skip
        said = []
        for process in started:
            self.addCleanup(harness.end_with_children, process)
            said.append(process.communicate(timeout=harness.LIMIT_S)[0])
            self.assertEqual(process.returncode, 0, said[-1])
        for node, text in enumerate(said):
            self.assertIn(f"rank {node} of {NODES}, node {node}", text)

    def test_the_batch_script_trains_on_two_nodes(self):
        self.program("srun", FAKE_SRUN.format(python=sys.executable))
        self.program("scontrol", FAKE_SCONTROL)
        harness.write_documents(self.folder / "rows.jsonl")
        config = harness.merged(harness.base_config("rows.jsonl", "run"), {"trainer.total_training_steps": 2, "trainer.save_freq": 2})
        (self.folder / "run.yaml").write_text(json.dumps(config))
        job = str(harness.free_port() % 1000 + 1000)
        environment = {**self.environment, "SLURM_NNODES": "2", "SLURM_JOB_ID": job, "SLURM_JOB_NODELIST": "n[1-2]", "KEEL_NPROC": "1"}
        script = EXAMPLES / "slurm/train.sbatch"

        def submit(*arguments, **more):
            return subprocess.run(["bash", script, *arguments], env={**environment, **more}, cwd=self.folder, capture_output=True,
                                  text=True, timeout=2 * harness.LIMIT_S, check=False)  # fmt: skip

        done = submit("run.yaml", "trainer.seed=5")
        self.assertEqual(done.returncode, 0, done.stdout[-3000:] + done.stderr[-3000:])
        self.assertEqual((self.folder / "run/latest_checkpointed_iteration.txt").read_text().strip(), "2")
        self.assertIn("seed: 5", (self.folder / "run/config.yaml").read_text())
        self.assertEqual(len(list((self.folder / "logs" / job).rglob("stdout.log"))), 2)
        self.assertFalse((self.folder / "scontrol.txt").exists())
        # Stopped with its state saved: queued again. Anything else: the code of the job.
        self.assertEqual(submit("run.yaml", FAKE_CODE="75").returncode, 0)
        self.assertEqual((self.folder / "scontrol.txt").read_text(), f"requeue {job}\n")
        self.assertEqual(submit("run.yaml", FAKE_CODE="69").returncode, 69)
        self.assertEqual(submit().returncode, 64)

    def test_the_batch_script_is_sound(self):
        script = EXAMPLES / "slurm/train.sbatch"
        self.assertEqual(subprocess.run(["bash", "-n", script], check=False).returncode, 0)
        lines = script.read_text().splitlines()
        options = [line for line in lines if line.startswith("#SBATCH")]
        # sbatch reads no option after the first command.
        self.assertLess(max(map(lines.index, options)), lines.index("set -euo pipefail"))
        for option in options:
            self.assertRegex(option, r"^#SBATCH --[a-z-]+(=\S+)?$")
        if shutil.which("shellcheck") is None:
            self.skipTest("SKIPPED: shellcheck is not installed; the rest has passed")
        done = subprocess.run(["shellcheck", script], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_a_pytorchjob_starts_the_launchers(self):
        job = load("kubernetes/pytorchjob.yaml")
        jsonschema.validate(job, PYTORCHJOB)
        commands, node = [], 0
        for role in ("Master", "Worker"):
            replica = job["spec"]["pytorchReplicaSpecs"][role]
            container = replica["template"]["spec"]["containers"][0]
            self.assertEqual(container["name"], "pytorch", "the operator looks for this name")
            self.assertIn(f"--master-addr={job['metadata']['name']}-master-0", container["args"])
            for _ in range(replica["replicas"]):
                words = [word.replace("$(RANK)", str(node)) for word in (*container["command"], *container["args"])]
                # What the operator sets in each pod means nothing to a launcher.
                commands.append((words, {"RANK": str(node), "WORLD_SIZE": "2", "MASTER_ADDR": "keel-master-0", "MASTER_PORT": "23456"}))
                node += 1
            self.mounts_exist(replica["template"]["spec"])
        self.assertEqual(node, NODES)
        self.launch_all(commands)

    def test_a_jobset_starts_the_launchers(self):
        job = load("kubernetes/jobset.yaml")
        jsonschema.validate(job, JOBSET)
        [nodes] = job["spec"]["replicatedJobs"]
        spec = nodes["template"]["spec"]
        self.assertEqual((spec["parallelism"], spec["completions"], spec["completionMode"]), (NODES, NODES, "Indexed"))
        pod = spec["template"]["spec"]
        container = pod["containers"][0]
        # <set>-<job>-<its number>-<pod's number>.<subdomain>
        self.assertIn(f"--master-addr={job['metadata']['name']}-{nodes['name']}-0-0.{job['spec']['network']['subdomain']}", container["args"])
        known = {variable["name"] for variable in container["env"]}
        used = set(re.findall(r"\$\((\w+)\)", " ".join(container["args"])))
        self.assertLessEqual(used, known, "Kubernetes fills in what the container's env has")
        self.mounts_exist(pod)
        words = [*container["command"], *container["args"]]
        self.launch_all([([word.replace("$(JOB_COMPLETION_INDEX)", str(node)) for word in words], {}) for node in range(NODES)])

    def test_what_would_end_the_same_way_is_not_tried_again(self):
        page = (ROOT / "docs/operating.md").read_text()
        said = {int(code) for code in re.findall(r"^\| (\d+) \| .* \| not try again[^|]*\|$", page, re.MULTILINE)}
        self.assertIn(78, said)
        job = yaml.safe_load(re.search(r'```yaml title="job.yaml"\n(.*?)```', page, re.DOTALL)[1])
        [nodes] = load("kubernetes/jobset.yaml")["spec"]["replicatedJobs"]
        for spec in (job["spec"], nodes["template"]["spec"]):
            jsonschema.validate(spec["podFailurePolicy"], POD_FAILURES)
            self.assertEqual(spec["template"]["spec"]["restartPolicy"], "Never", "the policy asks for it")
            fails = [rule for rule in spec["podFailurePolicy"]["rules"] if rule["action"] == "FailJob"]
            self.assertEqual({code for rule in fails for code in rule["onExitCodes"]["values"]}, said)

    def mounts_exist(self, pod):
        volumes = {volume["name"] for volume in pod["volumes"]}
        self.assertEqual(volumes, {mount["name"] for mount in pod["containers"][0]["volumeMounts"]})

    def test_a_skypilot_task_starts_the_launchers(self):
        task = load("skypilot/train.yaml")
        jsonschema.validate(task, SKYPILOT)
        self.assertEqual(task["num_nodes"], NODES)
        commands = []
        for part in ("setup", "run"):
            self.assertEqual(subprocess.run(["bash", "-n"], input=task[part], text=True, check=False).returncode, 0)
        # As its shell reads it: what keel would be started with.
        (self.folder / "keel/bin").mkdir(parents=True)
        (self.folder / "keel-run").mkdir()
        stand_in = self.folder / "keel/bin/keel"
        stand_in.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
        stand_in.chmod(0o755)
        for node in range(NODES):
            sky = {"HOME": str(self.folder), "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": str(node), "SKYPILOT_NUM_GPUS_PER_NODE": "8",
                   "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}  # fmt: skip
            done = subprocess.run(["bash", "-c", task["run"]], env={**self.environment, **sky}, capture_output=True, text=True, check=True)
            words = ["keel", *done.stdout.splitlines()]
            joined = []
            for word in words:  # --flag value as --flag=value
                if joined and joined[-1].startswith("--") and "=" not in joined[-1] and not word.startswith("--"):
                    joined[-1] += f"={word}"
                else:
                    joined.append(word)
            self.assertIn("--master-addr=10.0.0.1", joined)
            commands.append((joined, {}))
        self.launch_all(commands)
        # Where tools/package.sh puts it, and where what is run lies.
        self.assertEqual(task["file_mounts"], {"~/keel-packages": "build/packages", "~/keel-run/run.yaml": "run.yaml"})
        self.assertIn("~/keel-packages/keel-", task["setup"])
        self.assertIn("trainer.default_local_dir=/runs/", task["run"])
        self.assertIn("/runs", task["volumes"])
        self.assertIn("out=build/packages", (ROOT / "tools/package.sh").read_text())


class Docker(unittest.TestCase):
    """Of each Dockerfile: its instructions as words."""

    def instructions(self, path):
        text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
        return [line.split(maxsplit=1) for line in text.splitlines() if line.strip()]

    def files(self):
        found = sorted((ROOT / "docker").glob("*.Dockerfile"))
        self.assertEqual([path.stem for path in found], ["cpu", "cuda"])
        return found

    def test_instructions_are_known_and_stages_are_there(self):
        for path in self.files():
            stages, told = [], self.instructions(path)
            self.assertEqual(told[0][0], "FROM")
            for word, rest in told:
                self.assertIn(word, ("FROM", "RUN", "COPY", "WORKDIR", "ENV", "ARG", "SHELL", "USER", "ENTRYPOINT", "CMD"), path)
                if word == "FROM":
                    stages += re.findall(r" AS (\w+)$", rest)
                if word in ("ENTRYPOINT", "CMD", "SHELL"):
                    self.assertIsInstance(json.loads(rest), list)
                for stage in re.findall(r"--from=(\w+)", rest):
                    self.assertIn(stage, stages)

    def test_what_is_copied_is_there(self):
        ignored = (ROOT / ".dockerignore").read_text().split()
        for path in self.files():
            for word, rest in self.instructions(path):
                if word != "COPY" or "--from" in rest:
                    continue
                *sources, _ = shlex.split(rest)
                for source in sources:
                    self.assertTrue((ROOT / source).exists(), f"{path.name}: {source}")
                    self.assertNotIn(source.split("/")[0], ignored)

    def test_scripts_are_sound_and_their_options_known(self):
        for path in self.files():
            for word, rest in self.instructions(path):
                if word != "RUN":
                    continue
                self.assertEqual(subprocess.run(["bash", "-n"], input=rest, text=True, check=False).returncode, 0, rest)
                for script, options in re.findall(r"(tools/\w+\.sh)((?: [\w/-]+)*)", rest):
                    known = (ROOT / script).read_text()
                    for option in re.findall(r"--[\w-]+", options):
                        self.assertIn(f"{option})", known, f"{path.name}: {script} {option}")

    def test_python_packages_are_pinned_as_keel_needs_them(self):
        pinned = dict(re.findall(r"(?m)^(\w+)==(\S+)$", (ROOT / "requirements.txt").read_text()))
        for path in self.files():
            installs = [words for _, rest in self.instructions(path) for words in re.findall(r"pip install ([^&]*)", rest)]
            self.assertTrue(installs)
            for words in installs:
                skip = False
                for name in shlex.split(words):
                    if skip or name.startswith("-"):
                        skip = name == "--index-url"
                        continue
                    package, version = name.split("==")
                    self.assertEqual(version, pinned[package])

    def test_packages_of_debian_exist(self):
        if shutil.which("apt-cache") is None or not subprocess.run(["apt-cache", "policy", "bash"], capture_output=True, text=True, check=False).stdout:
            self.skipTest("SKIPPED: no apt-cache, or it knows no package")
        names = set()
        for path in self.files():
            for _, rest in self.instructions(path):
                for words in re.findall(r"apt-get install ([^&]*)", rest):
                    names |= {name for name in words.split() if not name.startswith("-") and "/" not in name}
        self.assertIn("dpkg-dev", names)
        for name in sorted(names):
            policy = subprocess.run(["apt-cache", "policy", name], capture_output=True, text=True, check=True).stdout
            self.assertRegex(policy, r"(Candidate|Installed): (?!\(none\))\S", name)


if __name__ == "__main__":
    unittest.main()
