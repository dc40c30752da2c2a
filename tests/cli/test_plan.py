"""``headrace plan``: what is printed, and what is refused."""

import io
import json
import time

import pytest
import torch
from PIL import Image

import headrace
from headrace.cli.__main__ import main
from headrace.cli.plans import plan_trace
from headrace.trace.reader import read
from tests.loader.test_on_device import Files
from tests.plan.servers import parameters

KNOWN = parameters("openimages", "in-house", 2).data()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "params.json"
    path.write_text(json.dumps(KNOWN))
    return path


def change(path, **values):
    path.write_text(json.dumps({name: value for name, value in (KNOWN | values).items() if value is not None}))


def test_json(file, capsys):
    assert main(["plan", "--params", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["split"] == [100, 0, 0]
    assert {name: round(rate) for name, rate in found["rates"].items()} == {"a": 773, "d": 773, "e": 3958, "s": 1583}
    assert round(found["throughput"]) == 2038
    assert found["limits"] == {"a": "cache", "d": "cache", "e": "cache", "s": "storage"}
    assert found["bottleneck"]["split"] == [100, 0, 0]
    assert round(found["bottleneck"]["throughput"]) == 1958
    assert found["bottleneck"]["limit"] == "storage"


def test_a_table_for_people(file, capsys):
    assert main(["plan", "--params", str(file), "--split", "58-41-1"]) == 0
    shown = capsys.readouterr().out
    for word in ("augmented", "decoded", "encoded", "storage", "3,958", "2,038", "1,958", "1,834", "held back by"):
        assert word in shown


def test_a_split_that_was_asked_for(file, capsys):
    assert main(["plan", "--params", str(file), "--split", "58-41-1", "--json"]) == 0
    asked = json.loads(capsys.readouterr().out)["asked"]
    assert asked["split"] == [58, 41, 1]
    assert (round(asked["throughput"]), round(asked["bottleneck"]["throughput"])) == (1834, 1813)


def test_what_cpus_here_cannot_make_can_be_other_hosts(file, capsys):
    change(file, t_da=500, t_a=500, t_gpu=2000, b_storage=1e12, b_cache=1e12, b_nic=1e12, b_pcie=1e12, n=1)
    assert main(["plan", "--params", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["elsewhere"]
    assert found["cpus"] is None
    assert found["of_own"] == pytest.approx(3, abs=0.1)
    assert main(["plan", "--params", str(file)]) == 0
    assert "remote=headrace.Ray(cpus=...)" in capsys.readouterr().out


def test_from_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(KNOWN)))
    assert main(["plan", "--params", "-", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"]["n"] == 2


def test_gradients_from_the_model_s_size(file, capsys):
    change(file, c_nw=None, c_pcie=None)
    options = ["--model-bytes", "1e8", "--gpus", "4", "--batch", "1000", "--nvlink", "node"]
    assert main(["plan", "--params", str(file), "--json", *options]) == 0
    known = json.loads(capsys.readouterr().out)["parameters"]
    assert (known["c_nw"], known["c_pcie"]) == (1e5, 0.0)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"t_gpu": None}, "missing parameter t_gpu"),
        ({"t_gpu": -1}, "parameter t_gpu must be positive, and is -1"),
        ({"c_nw": -1}, "parameter c_nw must not be negative"),
        ({"b_nic": "fast"}, "parameter b_nic must be a number, not 'fast'"),
        ({"b_nic": True}, "parameter b_nic must be a number"),
        ({"b_nic": float("inf")}, "parameter b_nic must be finite"),
        ({"n": 1.5}, "parameter n counts nodes"),
        ({"m": 0}, "parameter m must be positive"),
        ({"gpu": 3}, "unknown parameter 'gpu'; there are t_gpu"),
    ],
)
def test_wrong_parameters_are_one_line(file, capsys, values, said):
    change(file, **values)
    assert main(["plan", "--params", str(file)]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert str(file) in error
    assert error.count("\n") == 1


def test_wrong_files_are_one_line(tmp_path, file, capsys):
    for name, text in (("absent", None), ("words", "split"), ("list", "[1]")):
        path = tmp_path / name
        if text is not None:
            path.write_text(text)
        assert main(["plan", "--params", str(path)]) == 2
        assert capsys.readouterr().err.startswith("headrace plan: ")
    for options, said in (
        (["--split", "1-2-3"], "three percentages"),
        (["--model-bytes", "5"], "gives c_nw and c_pcie"),
    ):
        assert main(["plan", "--params", str(file), *options]) == 2
        assert said in capsys.readouterr().err


class TestOnDevice:
    """What ``on_device=True`` would give."""

    def test_is_not_known_without_a_figure_of_the_device(self, file, capsys):
        assert main(["plan", "--params", str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        there = found["on_device"]
        assert (there["known"], there["device"], there["keep"]) == (False, None, "encoded")
        assert there["why"].startswith("nothing says how fast the device decodes")
        assert there["instead_of"] == found["loader"]["throughput"]
        assert there["bytes"] == KNOWN["n_total"] * KNOWN["s_data"]
        assert main(["plan", "--params", str(file)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "What on_device=True would give cannot be known: nothing says how fast" in shown
        assert f"One that decodes {there['needs']:,.0f} pictures a second would give" in shown
        assert "an H200 decodes 7,000 to 15,000" in shown

    def test_is_predicted_from_its_rates(self, file, capsys):
        rates = {"t_da": 2000, "t_a": 250_000, "t_bring": 8000}
        change(file, device=rates, b_cache=1e12, n=1, t_da=500, t_a=900)
        assert main(["plan", "--params", str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        there = found["on_device"]
        assert (there["known"], there["device"], there["pays"]) == (True, rates, True)
        assert there["throughput"] > 2 * there["instead_of"] > 0
        assert "device" not in found["parameters"]
        assert main(["plan", "--params", str(file)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert f"With on_device=True: {there['throughput']:,.0f} samples/s instead of" in shown
        assert f"{there['limit']} to set the pace" in shown
        assert "the device decodes and augments 2,000, augments 250,000; cores bring 8,000 there" in shown

    def test_is_said_not_to_pay(self, file, capsys):
        change(file, device={"t_da": 10, "t_a": 250_000}, s_cache=0)
        assert main(["plan", "--params", str(file)]) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert "It does not pay." in shown
        assert "what cores need to bring them there is not known" in shown

    def test_wrong_rates_are_one_line(self, file, capsys):
        change(file, device={"t_da": 10})
        assert main(["plan", "--params", str(file)]) == 2
        assert "parameter device takes an object" in capsys.readouterr().err

    def test_is_what_a_trace_of_it_measured(self, tmp_path, file, capsys):
        path = tmp_path / "there"
        out = io.BytesIO()
        Image.new("RGB", (64, 48), "orange").save(out, "JPEG")
        dataset = Files(16 * [out.getvalue()])
        with headrace.DataLoader(dataset, 4, num_workers=2, device="cpu", on_device=True, trace=path) as loader:
            assert len(list(loader)) == 4
        file.write_text(json.dumps({"m": 64 * 48 * 3 / len(out.getvalue())}))
        options = ["plan", "--trace", str(path), "--params", str(file), "--cache-size", "1MiB", "--json"]
        assert main(options) == 0
        found = json.loads(capsys.readouterr().out)
        there, given = found["on_device"], found["parameters"]
        assert (there["known"], there["instead_of"]) == (True, None)
        assert there["device"]["t_da"] == given["t_da"] < there["device"]["t_a"] == given["t_a"]
        assert there["device"]["t_bring"] > 0
        assert found["loader"]["split"][2] == 0
        assert "cpu" not in {*found["limits"].values(), *found["bottleneck"]["limits"].values()}
        assert main(options[:-1]) == 0
        assert "With on_device=True: " in capsys.readouterr().out


class TestTrace:
    """Of a run, instead of typed."""

    @pytest.fixture
    def trace(self, tmp_path):
        path = tmp_path / "trace"
        with headrace.DataLoader(Pictures(), batch_size=4, num_workers=0, trace=path) as loader:
            assert len(list(loader)) == 8
        return path

    def test_parameters_are_those_of_the_run(self, trace):
        found = plan_trace.parameters(read(trace), "it")
        assert found["n_total"] == 32
        assert found["s_data"] == 1000
        assert found["m"] == 8
        assert 0 < found["t_da"] < found["t_a"]
        assert found["b_storage"] < 1000 / 0.001
        assert found["t_gpu"] > 0

    def test_both_models_answer(self, trace, capsys):
        assert main(["plan", "--trace", str(trace), "--cache-size", "16kB", "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert sum(found["split"]) == 100
        assert found["throughput"] > 0

    def test_what_is_given_counts_more(self, trace, file, capsys):
        file.write_text(json.dumps({"t_gpu": 3.5}))
        assert main(["plan", "--trace", str(trace), "--params", str(file), "--cache-size", "1MB", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["throughput"] == 3.5

    def test_what_it_lacks_is_named(self, trace, capsys):
        assert main(["plan", "--trace", str(trace)]) == 2
        assert "--cache-size" in capsys.readouterr().err
        assert main(["plan"]) == 2
        assert "--params FILE" in capsys.readouterr().err

    def test_a_dataset_without_stages_is_refused(self, tmp_path, capsys):
        path = tmp_path / "plain"
        with headrace.DataLoader(range(8), num_workers=0, trace=path) as loader:
            list(loader)
        assert main(["plan", "--trace", str(path), "--cache-size", "1MB"]) == 2
        assert "no fetch, decode, augment" in capsys.readouterr().err


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def fetch(self, index):
        time.sleep(0.001)
        return bytes(1000)

    def decode(self, encoded):
        return torch.zeros(1000, dtype=torch.int64)

    def augment(self, decoded):
        return decoded.clone()

    def __getitem__(self, index):
        return self.augment(self.decode(self.fetch(index)))
