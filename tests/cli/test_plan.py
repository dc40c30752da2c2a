"""``headrace plan``: what is printed, and what is refused."""

import io
import json

import pytest

from headrace.cli.__main__ import main
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
