"""Profiles of VTune and uProf, split by a measured mapping."""

from pathlib import Path

import pytest

from headrace.core.errors import TraceError
from headrace.trace.hardware.mapping import Link, Weights
from headrace.trace.hardware.names import bare, readable, spellings
from headrace.trace.hardware.vendor import UNMAPPED, read, split

DATA = Path(__file__).with_name("data")


def link(function: str, library: str, samples: int) -> Link:
    return Link(function, library, "native", samples, *[0.5] * 6)


MAPPING = {
    "Load": [
        link("decode_mcu", "libjpeg.so.62", 90),
        link("memmove", "libc.so.6", 9),
        link("function@0x59620", "libsimplejpeg.so", 5),
    ],
    "Resize": [link("memmove", "libc.so.6", 1)],
    "ToTensor": [link("void at::native::copy_kernel(at::TensorIterator&, bool)", "libtorch_cpu.so", 3)],
}


def test_hotspots_go_where_the_samples_were():
    export = read(DATA / "vtune_hotspots.csv")
    assert export.tool == "Intel VTune"
    found = split(export, MAPPING)
    assert found.columns[0] == "CPU Time"
    # memmove: nine tenths to Load and one to Resize, as it was sampled, however long either operation takes.
    assert found.operations["Load"]["CPU Time"] == pytest.approx(4.0 + 0.9 * 2.0 + 0.6)
    assert found.operations["Resize"]["CPU Time"] == pytest.approx(0.1 * 2.0)
    assert found.operations["Resize"]["CPU Time:Spin Time"] == pytest.approx(0.1 * 0.5)
    assert found.operations["ToTensor"]["CPU Time"] == pytest.approx(1.0)
    assert found.operations[UNMAPPED]["CPU Time"] == pytest.approx(0.4)
    assert found.covered == pytest.approx(1 - 0.4 / 8.0)


def test_ratios_are_means_weighted_by_cycles():
    export = read(DATA / "vtune_uarch.tsv")
    assert {"Retiring", "Front-End Bound", "CPI Rate", "Average CPU Frequency"} == export.ratios
    load = split(export, MAPPING).operations["Load"]
    cycles = 6e6 + 0.9 * 2e6
    assert load["Clockticks"] == pytest.approx(cycles)
    assert load["CPU Time"] == pytest.approx(1868.632 + 0.9 * 288.605)
    assert load["Retiring"] == pytest.approx((0.4 * 6e6 + 0.8 * 0.9 * 2e6) / cycles)
    assert load["CPI Rate"] == pytest.approx(cycles / (12e6 + 0.9 * 1e6))
    assert split(export, MAPPING).operations["Resize"]["Average CPU Frequency"] == pytest.approx(3.2e9)


def test_event_counts_are_read_by_their_names():
    found = split(read(DATA / "vtune_events.csv"), MAPPING)
    assert found.columns[0] == "CPU_CLK_UNHALTED.THREAD"
    assert found.operations["Load"]["INST_RETIRED.ANY"] == pytest.approx(12e6 + 0.9e6)
    assert found.covered == 1.0


def test_uprof_lists_a_function_once_per_event():
    export = read(DATA / "uprof.csv")
    assert export.tool == "AMD uProf"
    assert len(export.rows) == 2
    load = split(export, MAPPING).operations["Load"]
    assert load["CPU_TIME"] == pytest.approx(4000 + 0.9 * 2000)
    assert load["IPC"] == pytest.approx((12e6 + 0.9e6) / (6e6 + 0.9 * 2e6))
    assert load["L1_DC_MISSES (PTI)"] == pytest.approx((3 * 12e6 + 90 * 0.9e6) / (12e6 + 0.9e6))


def test_a_library_that_is_told_must_be_the_right_one():
    weights = Weights(MAPPING)
    assert weights.of(["memmove"], "libother.so") == {}
    assert weights.of(["memmove"], "[Unknown]") == {"Load": 0.9, "Resize": 0.1}
    assert weights.of(["func@0x59620"], "/somewhere/libsimplejpeg.so") == {"Load": 1.0}
    assert weights.of(["func@0x59620"], "[Unknown]") == {}  # an address means nothing without its library


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("memmove", "memmove"),
        ("foo::bar(int)", "foo::bar"),
        ("void foo<std::vector<int> >(int, foo<x>)", "foo<std::vector<int> >"),
        ("at::(anonymous namespace)::cat(at::Tensor const&)", "at::(anonymous namespace)::cat"),
        ("foo::operator()(int) const", "foo::operator()"),
        ("sort(long*) [clone .constprop.0]", "sort"),
        ("function@0x59620", "function@0x59620"),
    ],
)
def test_a_name_without_its_arguments(name, short):
    assert bare(name) == short


def test_torchs_kernels_are_called_by_what_they_do():
    inside = "at::native::AVX2::direct_copy_kernel(at::TensorIteratorBase&)::{lambda()#3}::operator()() const"
    name = (
        "void c10::function_ref<void (char**, long const*, long, long)>::callback_fn<at::native::AVX2::VectorizedLoop2d"
        f"<{inside}::{{lambda(unsigned char)#1}}, {inside}::{{lambda(at::vec::Vectorized<unsigned char>)#1}}> >(long)"
    )
    assert readable(name) == "direct_copy_kernel(unsigned char)"
    assert readable("foo::bar(int)") == "foo::bar"


def test_stripped_functions_are_spelt_in_many_ways():
    assert (
        spellings("func@0x59620")
        == spellings("FUN_0x59620")
        == spellings("libjpeg.so!0x00059620")
        == ["function@0x59620"]
    )


def test_what_is_no_profile_is_refused(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("Name,Value\na,1\n")
    with pytest.raises(TraceError, match="no table of functions"):
        read(path)
    with pytest.raises(TraceError, match="cannot be read"):
        read(tmp_path / "none.csv")
