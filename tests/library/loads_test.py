"""What objects make of a load, and what a load leaves as it was."""

import copy
import unittest

import torch
from library_support import Folder
from torch import nn


class Scaled(nn.Linear):
    """With something that is derived from its weight, whenever that is loaded."""

    def __init__(self):
        super().__init__(3, 2, bias=False)
        self.scale = self.of_weight()

    def of_weight(self):
        return self.weight.detach().abs().max().item()

    def derive(self, *_):
        self.scale = self.of_weight()


class ByHook(Scaled):
    def __init__(self):
        super().__init__()
        self.register_load_state_dict_post_hook(self.derive)


class ByMethod(Scaled):
    def _load_from_state_dict(self, *arguments):
        super()._load_from_state_dict(*arguments)
        self.derive()


class ByItself(Scaled):
    def load_state_dict(self, *arguments, **named):
        super().load_state_dict(*arguments, **named)
        self.derive()


class Versioned(Scaled):
    _version = 3

    def _load_from_state_dict(self, state, prefix, local_metadata, *more):
        super()._load_from_state_dict(state, prefix, local_metadata, *more)
        self.loaded_version = local_metadata.get("version")


class Epochs(nn.Linear):
    def __init__(self):
        super().__init__(3, 2)
        self.epoch = 0

    def get_extra_state(self):
        return {"epoch": self.epoch}

    def set_extra_state(self, state):
        self.epoch = state["epoch"]


class InFloat32(torch.optim.Optimizer):
    """Momentum in float32, whatever the parameters are in."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state.update(master=parameter.float(), momentum=torch.zeros_like(parameter, dtype=torch.float32), step=torch.tensor(0.0))
            state["step"] += 1
            state["momentum"].mul_(0.9).add_(parameter.grad.float())
            state["master"].sub_(state["momentum"], alpha=0.1)
            parameter.copy_(state["master"])


class Nested(torch.optim.Optimizer):
    """With moments in float32, and counts, in dicts and lists of each parameter's state."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            state, grad = self.state[parameter], parameter.grad.float()
            if not state:
                state.update(parts=[torch.zeros_like(grad), (torch.zeros_like(grad),)], more={"m": torch.zeros_like(grad), "step": torch.tensor(0.0), "seen": [torch.tensor(0)]})
            for moment in (state["parts"][0], state["parts"][1][0], state["more"]["m"]):
                moment.mul_(0.9).add_(grad, alpha=0.1234567)
            state["more"]["step"] += 1
            state["more"]["seen"][0] += 257  # which bfloat16 has not
            parameter.sub_(state["more"]["m"].to(parameter.dtype), alpha=0.1)


def trained(optimizer, model=None):
    model = model or nn.Linear(3, 2)
    made = optimizer(model)
    model(torch.randn(4, 3).to(model.weight.dtype)).square().sum().backward()
    made.step()
    return model, made


class Modules(Folder):
    def test_one_that_hears_of_loads_hears_of_this_one(self):
        for kind in (ByHook, ByMethod, ByItself):
            with self.subTest(kind.__name__):
                saved, got = kind(), kind()
                checkpoints = self.open(kind.__name__)
                checkpoints.save(1, {"model": nn.Sequential(saved) if kind is not ByItself else saved})
                checkpoints.load({"model": nn.Sequential(got) if kind is not ByItself else got})
                self.assertTrue(torch.equal(saved.weight, got.weight))
                self.assertEqual(got.scale, saved.of_weight())

    def test_it_is_told_the_version_that_its_state_has(self):
        checkpoints, got = self.open(), Versioned()
        checkpoints.save(1, {"model": Versioned()})
        checkpoints.load({"model": got})
        self.assertEqual(got.loaded_version, 3)

    def test_what_may_be_missing_stays_as_it_was_beside_state_of_its_own(self):
        saved, got = Epochs(), Epochs()
        saved.epoch, bias = 5, got.bias.detach().clone()
        checkpoints = self.open()
        checkpoints.save(1, {"model": {name: value for name, value in saved.state_dict().items() if name != "bias"}})
        checkpoints.load({"model": got}, allow_missing=["model.bias"])
        self.assertEqual(got.epoch, 5)
        self.assertTrue(torch.equal(got.weight, saved.weight) and torch.equal(got.bias, bias))
        checkpoints.save(2, {"model": saved.state_dict() | {"more": torch.ones(1)}})
        checkpoints.load({"model": got}, allow_missing=["model.more"])
        self.assertTrue(torch.equal(got.bias, saved.bias))


class Optimizers(Folder):
    def test_other_groups_are_refused_before_anything_is_touched(self):
        model, two = trained(lambda m: torch.optim.AdamW([{"params": [m.weight]}, {"params": [m.bias]}]))
        checkpoints = self.open()
        checkpoints.save(1, {"model": model, "optimizer": two})
        other = nn.Linear(3, 2)
        before = copy.deepcopy(other.state_dict())
        with self.assertRaisesRegex(ValueError, r"nothing was loaded: 'optimizer' has groups of \[2\] parameters in the state, and of \[1, 1\] in the"):
            checkpoints.load({"model": other, "optimizer": torch.optim.AdamW(other.parameters())})
        self.assert_same(other.state_dict(), before)

    def test_parameters_in_another_order_are_refused_where_their_names_say_so(self):
        model, saved = trained(lambda m: torch.optim.AdamW(m.named_parameters()))
        checkpoints = self.open()
        checkpoints.save(1, {"model": model, "optimizer": saved})
        other = nn.Linear(3, 2)
        turned = torch.optim.AdamW(reversed(list(other.named_parameters())))
        if "param_names" not in turned.param_groups[0]:
            self.skipTest("this torch's optimizers know no names")
        with self.assertRaisesRegex(ValueError, "'optimizer' has its parameters in another order.*'bias' in the state stands where 'weight'"):
            checkpoints.load({"model": other, "optimizer": turned})
        self.assertEqual(turned.state_dict()["state"], {})
        again = torch.optim.AdamW(other.named_parameters())
        checkpoints.load({"model": other, "optimizer": again})
        for number, moments in saved.state_dict()["state"].items():
            self.assert_same(again.state_dict()["state"][number], moments)
        # Without names, there is nothing to compare.
        checkpoints.load({"model": other, "optimizer": torch.optim.AdamW(other.parameters())})

    def test_a_scaler_that_was_saved_disabled_is_refused_before_anything_is_touched(self):
        weight, checkpoints = torch.ones(2), self.open()
        checkpoints.save(1, {"weight": weight, "scaler": torch.amp.GradScaler("cpu", enabled=False)})
        state = {"weight": torch.zeros(2), "scaler": torch.amp.GradScaler("cpu")}
        with self.assertRaisesRegex(ValueError, "'scaler' is a GradScaler that is enabled, and was saved disabled"):
            checkpoints.load(state)
        self.assertEqual(state["weight"].sum(), 0)
        checkpoints.load(state | {"scaler": torch.amp.GradScaler("cpu", enabled=False)})
        self.assertEqual(state["weight"].sum(), 2)

    def test_moments_keep_the_dtype_that_they_were_saved_in(self):
        model, saved = trained(lambda m: InFloat32(m.parameters()), nn.Linear(3, 2).bfloat16())
        checkpoints = self.open()
        checkpoints.save(1, {"model": model, "optimizer": saved})
        wanted = saved.state_dict()["state"]
        fresh = nn.Linear(3, 2).bfloat16()
        for again in ((fresh, InFloat32(fresh.parameters())), trained(lambda m: InFloat32(m.parameters()), nn.Linear(3, 2).bfloat16())):
            checkpoints.load(dict(zip(("model", "optimizer"), again)))
            for one, other in zip(again[1].state_dict()["state"].values(), wanted.values(), strict=True):
                self.assert_same(one, other)

    def test_moments_in_lists_and_dicts_keep_it_too(self):
        model, saved = trained(lambda m: Nested(m.parameters()), nn.Linear(3, 2).bfloat16())
        checkpoints = self.open()
        checkpoints.save(1, {"model": model, "optimizer": saved})
        wanted = str(saved.state_dict()["state"])
        fresh = nn.Linear(3, 2).bfloat16()
        for again in ((fresh, Nested(fresh.parameters())), trained(lambda m: Nested(m.parameters()), nn.Linear(3, 2).bfloat16())):
            checkpoints.load(dict(zip(("model", "optimizer"), again)))
            self.assertEqual(str(again[1].state_dict()["state"]), wanted)

    def test_the_history_of_lbfgs_keeps_its_dtype(self):
        def make():
            torch.manual_seed(0)
            weights = [torch.randn(6).bfloat16().requires_grad_(), torch.randn(6).requires_grad_()]
            return weights, torch.optim.LBFGS(weights, lr=0.2, max_iter=2, history_size=4)

        def step(weights, optimizer):
            def loss():
                optimizer.zero_grad()
                value = ((weights[0].float() - 1) ** 4).sum() + ((weights[1] + weights[0].float()) ** 2).sum()
                value.backward()
                return value

            return optimizer.step(loss).item()

        (weights, optimizer), (others, again), checkpoints = make(), make(), self.open()
        for _ in range(3):
            step(weights, optimizer)
        checkpoints.save(1, {"w": dict(enumerate(weights)), "o": optimizer})
        checkpoints.load({"w": dict(enumerate(others)), "o": again})
        self.assertEqual([step(others, again) for _ in range(3)], [step(weights, optimizer) for _ in range(3)])


class Devices(Folder):
    def test_the_default_device_is_not_that_of_a_load(self):
        model, saved = trained(lambda m: torch.optim.AdamW(m.parameters()))
        checkpoints = self.open()
        checkpoints.save(1, {"model": model, "optimizer": saved, "none": torch.zeros(0, 2)})
        other = nn.Linear(3, 2)
        moments = torch.optim.AdamW(other.parameters())
        tied = torch.zeros(2, 3)
        with torch.device("meta"):  # as a program has that says torch.set_default_device("cuda")
            restored = checkpoints.restore().state
            checkpoints.load({"model": other, "optimizer": moments, "none": torch.zeros(0, 2, device="cpu")})
            checkpoints.load({"model": {"weight": tied}, "more": {"weight": tied}}, allow_missing=["model.bias", "optimizer*", "none", "more*"])
        self.assert_same(restored["model"], model.state_dict())
        self.assertEqual(restored["none"].device.type, "cpu")
        self.assert_same(other.state_dict(), model.state_dict())
        self.assert_same(moments.state_dict()["state"][0], saved.state_dict()["state"][0])
        self.assertTrue(torch.equal(tied, model.weight))


class Empty(Folder):
    def test_a_tensor_without_elements_is_one_on_both_sides_or_refused(self):
        none, value = torch.zeros(0, 3), 5
        for saved, here, words in ((none, value, "in the checkpoint alone"), (value, none, "in the state alone"), (none, torch.zeros(3), "in the checkpoint alone"),
                                   (torch.zeros(3), none, "in the state alone")):  # fmt: skip
            checkpoints = self.open()
            checkpoints.save(1, {"x": saved, "t": torch.ones(1)})
            state = {"x": here, "t": torch.zeros(1)}
            with self.assertRaisesRegex(ValueError, f"nothing was loaded: 'x' is a tensor without elements {words}"):
                checkpoints.load(state)
            self.assertEqual((state["x"] is here, state["t"].item()), (True, 0))
            checkpoints.close()


if __name__ == "__main__":
    unittest.main()
