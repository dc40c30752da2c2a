"""The page, in a real browser: no error, and the plots show the right numbers."""

import html.parser
import json
import shutil
import subprocess

import pytest
from PIL import Image

from headrace.trace import html as page_module
from headrace.trace.calibrate import Calibration
from headrace.trace.html import page, timeline
from headrace.trace.report import report
from tests.trace.made import MS, Made, input_bound

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium here; `make browser` installs it on Debian")

# What a person would do, and what only a script can see: the colours on a canvas.
VISIT = """<script>
function ink(id) {
  const canvas = document.getElementById(id), seen = new Set();
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  for (let i = 0; i < data.length; i += 4)
    if (data[i + 3] > 200) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
  return seen.size;
}
const note = document.documentElement.dataset, canvas = document.getElementById("timeline");
note.waitsInk = ink("waits"); note.timelineInk = ink("timeline");
note.slicesBefore = canvas.dataset.slices;
document.querySelector("[data-zoom='0.5']").click();
note.slicesZoomed = canvas.dataset.slices; note.rangeZoomed = document.getElementById("range").textContent;
document.querySelector("[data-zoom='0']").click();
const place = canvas.getBoundingClientRect(), worker = timeline.rows[1];
const at = { clientX: place.left + timeline.left + 3, clientY: place.top + worker.y + 2.5 * timeline.row };
canvas.dispatchEvent(new PointerEvent("pointermove", at));
note.tip = document.getElementById("tip").textContent;
canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: -100, clientX: place.left + 300, cancelable: true }));
note.rangeWheeled = document.getElementById("range").textContent;
if (document.querySelectorAll("nav button").length > 1) document.querySelectorAll("nav button")[1].click();
</script></body>"""


class Elements(html.parser.HTMLParser):
    """Start tags with their attributes and the text that follows each."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs), []))

    def handle_data(self, data):
        if self.found:
            self.found[-1][2].append(data)

    def having(self, **attributes):
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        return [
            (found, "".join(text))
            for _, found, text in self.found
            if all(name in found and value in {None, found[name]} for name, value in wanted.items())
        ]


def browse(tmp_path, text, *options):
    """What the browser makes of the page."""
    (tmp_path / "page.html").write_text(text)
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-extensions",
    ]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1240,1700", "--hide-scrollbars", *options]
    done = subprocess.run(
        [*command, f"file://{tmp_path / 'page.html'}"], capture_output=True, text=True, timeout=240, check=True
    )
    return done.stdout


@pytest.fixture
def made(tmp_path):
    made = input_bound(tmp_path / "run.trace", epochs=2)
    made.run("</script>[val]", workers=2)
    for number in range(3):
        made.sample(1, 500 + 5 * number, 4, number, batch=number)
        made.batch(number, 500 + 5 * number, 504 + 5 * number)
    return made


@pytest.fixture
def text(made):
    trace = made.read()
    return page(trace, report(trace, Calibration(0, 0, 0, 0)))


@needs_browser
class TestInABrowser:
    @pytest.fixture
    def shown(self, tmp_path, text):
        return Elements(browse(tmp_path, text.replace("</body>", VISIT), "--dump-dom"))

    def root(self, shown):
        return next(attributes for tag, attributes, _ in shown.found if tag == "html")

    def test_no_error_and_the_right_numbers(self, tmp_path, text):
        shown = Elements(browse(tmp_path, text, "--dump-dom"))
        assert self.root(shown) == {"lang": "en", "data-ready": "yes"}
        (meaning,) = shown.having(id="meaning")
        assert meaning[1] == "The input is the bottleneck: the trainer waits for batches."
        boxes = shown.having(**{"class": "box"})
        assert [(box["data-epoch"], float(box["data-p50"])) for box, _ in boxes] == [
            ("0", pytest.approx(0.02)),
            ("1", pytest.approx(0.02)),
        ]
        shares = {found["data-operation"]: float(found["data-share"]) for found, _ in shown.having(data_operation=None)}
        assert shares["decode"] == pytest.approx(0.6)
        assert shown.having(id="waits", data_points="40")
        ((canvas, _),) = shown.having(id="timeline")
        assert int(canvas["data-arrows"]) == 43
        assert int(canvas["data-slices"]) > 100

    def test_workers_are_as_busy_as_the_verdict_says(self, tmp_path):
        """Also where a spare process stood in for one of them: three lanes were seen, two worked at a time."""
        made = Made(tmp_path / "run.trace")
        made.run("train", workers=2)
        for number in range(10):
            made.sample(number % 3, 10 * number, 4, number, batch=number)
            made.batch(number, 10 * number, 10 * number + 5)
        trace = made.read()
        found = report(trace, Calibration(0, 0, 0, 0))
        shown = Elements(browse(tmp_path, page(trace, found), "--dump-dom")).found
        texts = ["".join(text) for _, _, text in shown]
        tile = texts[texts.index("workers' time busy") - 1]
        assert f"The 2 workers were busy {''.join(tile.split())} of the time." in found.loaders[0].verdict.evidence

    def test_canvases_zoom_hover_and_the_other_loader(self, shown):
        root = self.root(shown)
        assert "data-errors" not in root
        assert int(root["data-waits-ink"]) >= 3
        assert int(root["data-timeline-ink"]) >= 6
        assert root["data-range-zoomed"] != root["data-range-wheeled"]
        assert int(root["data-slices-zoomed"]) < int(root["data-slices-before"])
        assert root["data-tip"].startswith("worker 0")
        assert "sample 0: 10.0 ms" in root["data-tip"]
        assert "decode: 6.00 ms" in root["data-tip"]
        (boxes,) = [shown.having(**{"class": "box"})]
        assert [float(box["data-p50"]) for box, _ in boxes] == [pytest.approx(0.004)]
        assert shown.having(id="waits", data_points="3")

    @pytest.mark.parametrize("scheme", ["light", "dark"])
    def test_it_can_be_seen(self, tmp_path, text, scheme):
        shot = tmp_path / "page.png"
        options = ["--blink-settings=preferredColorScheme=0"] if scheme == "dark" else []
        browse(tmp_path, text, f"--screenshot={shot}", *options)
        with Image.open(shot) as picture:
            red, green, blue = picture.convert("RGB").getpixel((3, 3))
            colours = len(picture.convert("RGB").getcolors(1 << 24))
        assert (red + green + blue > 600) == (scheme == "light")
        assert colours > 100

    def test_a_trace_without_batches(self, tmp_path):
        trace = Made(tmp_path / "empty.trace").read()
        shown = Elements(browse(tmp_path, page(trace, report(trace, Calibration(0, 0, 0, 0))), "--dump-dom"))
        assert self.root(shown) == {"lang": "en", "data-ready": "yes"}


def test_it_needs_nothing_from_elsewhere(text):
    script = text.partition("const DATA")
    assert "http" not in (script[0] + text.partition("const COLOURS")[2]).replace("http://www.w3.org/2000/svg", "")
    assert " src=" not in text
    assert text.count("</script>") == 1  # a loader's name does not end it


def test_what_is_too_much_to_draw_is_cut_off(made, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_SLICES", 50)
    trace = made.read()
    cut = timeline(trace)
    assert cut["length"] < cut["whole"] / 4
    assert sum(len(track["start"]) for track in cut["tracks"]) < 100
    later = timeline(trace, begin=0.1)
    assert later["begin"] == pytest.approx(0.1)
    waits = [later["names"][name] for name in later["tracks"][0]["name"]]
    assert waits[0] == "wait for batch 10"
    json.dumps(later)


def test_workers_of_later_epochs_follow_on_the_same_track(tmp_path):
    made = Made(tmp_path / "t")
    for epoch in range(3):
        made.run(epoch=epoch)
        made.sample(0, 100 * epoch, 50, 0, batch=0)
        made.batch(0, 100 * epoch, 100 * epoch + 60)
        made._streams.pop(0)
    made.sample(0, 220, 50, 1)
    shown = timeline(made.read())
    assert [(track["title"], len(track["processes"])) for track in shown["tracks"]] == [
        ("trainer", 1),
        ("worker 0", 3),
        ("worker 0", 1),  # at the same time as the other
    ]
    assert {arrow[0] for arrow in shown["arrows"]} == {1}


def test_batches_that_are_thinned_out_keep_the_longest_waits(tmp_path, monkeypatch):
    monkeypatch.setattr(page_module, "MOST_POINTS", 4)
    made = Made(tmp_path / "t")
    made.run()
    for number in range(12):
        made.batch(number, 10 * number, 10 * number + (7 if number == 5 else 1))
    points = page_module._points(page_module.delivered(made.read()))
    assert len(points["wait"]) == 4
    assert max(points["wait"]) == pytest.approx(7 * MS / 1e9)
