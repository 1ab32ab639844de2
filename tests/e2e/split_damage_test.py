"""A bit that flips between the desk and a worker, on its way to either of them, costs that worker and nothing else."""

import json
import socket
import threading
import unittest

import harness
import split_test


class Relay:
    """Stands between workers and a desk, and hands on what they say; in what next goes one way, once it is asked to, it flips a bit."""

    def __init__(self, desk):
        self.desk = desk
        self.damage = None  # "up": of what the worker says; "down": of what the desk does
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                worker = self.listener.accept()[0]
            except OSError:
                return
            desk = socket.create_connection(self.desk)
            for way, source, sink in (("up", worker, desk), ("down", desk, worker)):
                threading.Thread(target=self.carry, args=(way, source, sink), daemon=True).start()

    def carry(self, way, source, sink):
        try:
            while data := bytearray(source.recv(65536)):
                if self.damage == way:
                    self.damage = None
                    data[len(data) // 2] ^= 0x10
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass


class SplitDamage(split_test.SplitJob):
    def test_a_connection_that_damages_bytes_costs_its_worker_alone(self):
        """The worker ends with a code that its launcher starts it again after, and the run is the undisturbed one."""
        changes = {"trainer__save_freq": 6, "trainer__test_freq": -1}
        self.train(self.rl("undisturbed", **changes))
        for way in ("up", "down"):
            with self.subTest(way):
                config = self.split(way, **changes, **self.PATIENT)
                job = self.start_split(config, 1, 1, "worker.step:1:10:stop")
                self.stopped_rank(job, 1)
                desk = json.loads((self.run_dir(way) / "desk.json").read_text())
                relay = Relay((desk["host"], desk["port"]))
                self.addCleanup(relay.listener.close)
                with self.join(config, f"127.0.0.1:{relay.port}") as worker:
                    self.wait_until(lambda way=way: self.serving(way) == 2, "the one that joined serves", job)
                    relay.damage = way
                    # The next that the desk says is of the step that waits for the worker which stands still.
                    self.continued(job, 1)
                    said, _ = worker.communicate(timeout=harness.LIMIT_S)
                self.assertEqual(worker.returncode, 69, said[-4000:])
                self.assertIn("the desk's connection: a frame arrived damaged", said)
                self.ends(job)
                self.assertEqual(self.learnt(way), self.learnt("undisturbed"))
                self.assertEqual(self.digests(way, 6), self.digests("undisturbed", 6))
                (self.folder / "log.txt").unlink()


if __name__ == "__main__":
    unittest.main()
