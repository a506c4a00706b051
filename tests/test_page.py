"""The page at `/`, in a real Chromium against a real server; and what holds of its files."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from serving import ADMIN, USER, running, text_detector, vector_detector, words_to_rows

import outscope.serve
from outscope import TextDetector
from outscope.serve import Settings
from outscope.serve.gate import POLICY
from outscope.serve.keys import Keys, hash_key

STATIC = Path(outscope.serve.__file__).with_name("static")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
INSIDE, OUTSIDE = "unlock bike station lock", "zebra quantum opera volcano"
SCRIPT = '<img src="x" onerror="window.hit = 1"><script>window.hit = 1</script>'
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Debian's chromium in $PATH")


# ---- its files


def test_files_are_small_and_need_nothing_from_elsewhere():
    for file in STATIC.iterdir():
        content = file.read_text("utf-8")
        assert len(content.splitlines()) < 400, file.name
        for address in re.findall(r"\bhttps?://[^\s\"')]+", content):
            assert address == "http://www.w3.org/2000/svg", f"{file.name}: {address}"
        for risky in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert risky not in content, f"{file.name}: {risky}"


def test_nothing_is_inline_as_the_policy_demands():
    page = (STATIC / "index.html").read_text("utf-8")
    assert "unsafe" not in POLICY
    assert "<style" not in page
    assert not re.search(r"\s(style|on\w+)=", page)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    used = {
        name
        for js in STATIC.glob("*.js")
        for name in re.findall(r'\$\("([^"]+)"\)', js.read_text())
    }
    assert used <= set(ids)


PAIRS = [
    *[("--ink", under, 4.5) for under in ("--card", "--ground", "--sunk")],
    *[("--soft", under, 4.5) for under in ("--card", "--ground", "--sunk")],
    *[("--accent", under, 4.5) for under in ("--card", "--accent-wash")],
    *[("--out", under, 4.5) for under in ("--card", "--out-wash")],
    ("--error", "--error-wash", 4.5),
    ("--accent-ink", "--accent", 4.5),
    ("--edge", "--card", 3.0),  # borders of controls
]


def luminance(colour):
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ (0.2126, 0.7152, 0.0722))


def test_colours_can_be_told_apart():
    blocks = re.findall(r"\{([^{}]*--ground:[^{}]*)\}", (STATIC / "base.css").read_text())
    light, *dark = [dict(re.findall(r"(--[\w-]+): (#\w{6});", block)) for block in blocks]
    assert len(dark) == 2
    assert dark[0] == dark[1]
    for colours in (light, dark[0]):
        for over, under, least in PAIRS:
            dim, bright = sorted((luminance(colours[over]), luminance(colours[under])))
            assert (bright + 0.05) / (dim + 0.05) >= least, (over, under)


# ---- in a browser


@pytest.fixture(scope="module")
def detector():
    return text_detector()


@pytest.fixture(scope="module")
def rows():
    return vector_detector()[0]


@pytest.fixture(scope="module")
def service(detector, rows):
    """A service that anybody may ask, and that an admin may teach."""
    keys = Keys({}, {hash_key(ADMIN): "a"})
    with running({"texts": detector, "rows": rows}, keys=keys) as port:
        yield port


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(chromium, port, *, width=1280, height=900, network_errors=False, **options):
    """The page, open; afterwards, nothing must have gone wrong or elsewhere."""
    origin, wrong = f"http://127.0.0.1:{port}", []
    context = chromium.new_context(viewport={"width": width, "height": height}, **options)
    context.set_default_timeout(15_000)
    page = context.new_page()

    def told(message):
        expected = network_errors and message.text.startswith("Failed to load resource")
        if message.type in ("error", "warning") and not expected:
            wrong.append(message.text)

    page.on("console", told)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.on(
        "request",
        lambda asked: asked.url.startswith((f"{origin}/", "blob:")) or wrong.append(asked.url),
    )
    try:
        page.goto(origin)
        yield page
        assert page.evaluate("window.hit") is None
    finally:
        context.close()
    assert wrong == []


@pytest.fixture
def page(chromium, service):
    with opened(chromium, service) as one:
        one.wait_for_selector("#legend button")
        yield one


def asked_of(port, route, **body):
    """What the service itself answers."""
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/{route}", json=body)
    return answer.raise_for_status().json()


def expect(page, selector, words):
    """Wait until an element says something."""
    page.locator(selector).filter(has_text=words).wait_for()


def judged(page, text):
    """Type a text; the decision once it is there."""
    with page.expect_response("**/v1/explain"):
        page.fill("#text", text)
    page.wait_for_selector('#result:not([hidden])[aria-busy="false"]')
    return page.inner_text("#decision")


@needs_chromium
def test_a_text_is_judged_while_it_is_typed(page, detector):
    page.locator("#text").press_sequentially(INSIDE, delay=5)
    expect(page, "#decision", "In scope: ride")
    inside, outside = detector.predict([INSIDE, OUTSIDE])
    assert page.text_content(".point-word") == f"{inside.ood_score:.3f}"
    assert f"p-value {inside.p_value:.3f}" in page.inner_text("#because")
    assert page.text_content(".cut-word") == f"threshold {detector.threshold_:.3f}"
    assert page.locator(".scale .usual").count() == 1
    first = page.locator("#reasons > li").first
    assert first.locator("li").first.inner_text().startswith(inside.nearest[0])
    assert re.match(r"\d+(\.\d+)? %", first.locator(".share").inner_text())
    expect(page, "#said", "In scope: ride. Score")
    assert judged(page, OUTSIDE) == "Out of scope"
    assert page.text_content(".point-word") == f"{outside.ood_score:.3f}"
    expect(page, "#said", "above the threshold")
    page.fill("#text", "")
    page.wait_for_selector("#result", state="hidden")


@needs_chromium
def test_the_rate_moves_every_decision_without_scoring_again(page, service, detector, tmp_path):
    rng = np.random.default_rng(3)
    words = [word for text in detector.remembered_texts_ for word in text.split()]
    texts = [f"{' '.join(rng.choice(words, 3))} strange{i}" for i in range(60)]
    scores = detector.ood_score(texts)
    (tmp_path / "some.txt").write_text("\n".join(texts))
    page.set_input_files("#file", tmp_path / "some.txt")
    page.click("#start")
    page.wait_for_selector("#going", state="hidden")
    judged(page, texts[0])
    asked = []
    page.on("request", lambda one: asked.append(one.url.rpartition("/")[2]))
    seen = set()
    for step in (200, 140, 170):
        page.locator("#rate").fill(str(step))
        rate = float(f"{10 ** (-3 + step / 100):.2g}")
        expect(page, "#rate-value", f"{100 * rate:g} %")
        page.wait_for_selector("#own-rate")
        expect(page, "#promise", f"≤ {100 * rate:g} %")
        cut = asked_of(service, "threshold", fpr=rate)["threshold"]
        expect(page, "#counts dd >> nth=0", f"{cut:.3f}")
        flagged = int(np.sum(scores > cut))
        assert page.inner_text("#n-flagged") == str(flagged)
        assert f"{flagged} of 60" in page.inner_text("#counts")
        assert page.locator("#verdict.out").count() == int(scores[0] > cut)
        seen.add(flagged)
    assert len(seen) > 1
    assert set(asked) == {"threshold"}
    page.locator("#rate").fill("0")
    expect(page, "#least", "can promise no less than")
    page.click("#own-rate")
    expect(page, "#counts dd >> nth=0", f"{detector.threshold_:.3f}")


@needs_chromium
def test_the_map_shows_texts_and_where_the_query_lies(page, detector):
    canvas = page.locator("#canvas")
    assert f"{len(detector.remembered_texts_)} in-scope texts" in canvas.get_attribute("aria-label")
    canvas.scroll_into_view_if_needed()
    box, found = canvas.bounding_box(), set()
    for i in range(400):
        x, y = (i % 20 + 0.5) / 20, (i // 20 + 0.5) / 20
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        if page.locator("#tip").is_visible():
            found.add(page.inner_text("#tip").split("\n")[-1])
        if len(found) > 3:
            break
    assert len(found) > 3
    assert found <= set(detector.remembered_texts_)
    page.mouse.move(0, 0)
    before = canvas.screenshot()
    judged(page, INSIDE)
    page.wait_for_timeout(300)
    assert canvas.screenshot() != before
    before = canvas.screenshot()
    page.click("#zoom-in")
    page.wait_for_timeout(300)
    assert canvas.screenshot() != before
    label = page.locator("#legend button").first
    label.click()
    assert label.get_attribute("aria-pressed") == "true"


NEAREST = """async ([n, radius]) => {
  const { Grid } = await import("/grid.js");
  let seed = 1;
  const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
  const x = Float64Array.from({ length: n }, () => random() ** 2);
  const y = Float64Array.from({ length: n }, () => random());
  const grid = new Grid(x, y);
  const far = (i, px, py) => (i < 0 ? Infinity : (x[i] - px) ** 2 + (y[i] - py) ** 2);
  return Array.from({ length: 40 }, () => {
    const [px, py] = [1.2 * random() - 0.1, 1.2 * random() - 0.1];
    let best = -1;
    for (let i = 0; i < n; i += 1) if (far(i, px, py) <= radius ** 2 && far(i, px, py) < far(best, px, py)) best = i;
    return [grid.nearest(px, py, radius), best];
  });
}"""


@needs_chromium
def test_the_nearest_of_many_points_is_found(page):
    for n, radius in ((50_000, 0.004), (50_000, 0.1), (7, 10.0), (1, 0.5), (0, 1.0)):
        for found, nearest in page.evaluate(NEAREST, [n, radius]):
            assert found == nearest


DROP = """([name, content]) => {
  const data = new DataTransfer();
  data.items.add(new File([content], name));
  document.body.dispatchEvent(new DragEvent('drop', {dataTransfer: data, bubbles: true, cancelable: true}));
}"""


@needs_chromium
def test_a_file_is_dropped_judged_filtered_and_downloaded(page, detector):
    texts = [
        INSIDE,
        OUTSIDE,
        "=SUM(1, 2) pay bill",
        SCRIPT,
        'he said "pay", bill',
        "login password\nphone",
    ]
    texts += [f"pay bill invoice {i}" for i in range(150)]
    content = io.StringIO()
    csv.writer(content).writerows(
        [["id", "what they wrote"], *([i, text] for i, text in enumerate(texts)), ["x", ""]]
    )
    page.evaluate(DROP, ["in.csv", content.getvalue()])
    assert (
        page.locator("#column").evaluate("box => box.selectedOptions[0].text") == "what they wrote"
    )
    page.select_option("#column", label="id")
    assert page.locator("#preview li").first.inner_text() == "0"
    page.select_option("#column", label="what they wrote")
    assert page.inner_text("#start") == f"Judge {len(texts)} texts"
    page.click("#start")
    page.wait_for_selector("#going", state="hidden")
    verdicts = detector.predict(texts)
    assert page.inner_text("#n-flagged") == str(sum(one.is_ood for one in verdicts))
    shown = [float(cell) for cell in page.locator("td.score").all_inner_texts()]
    assert len(shown) == 100
    assert shown == sorted(shown, reverse=True)
    assert shown[0] == round(max(one.ood_score for one in verdicts), 3)
    page.click("#later")
    assert page.inner_text("#shown") == f"101 to {len(texts)} of {len(texts)}"
    page.click("th[data-sort=row] button")
    assert page.locator("td.number").first.inner_text() == "1"
    page.locator("input[value=kept]").check(force=True)
    page.fill("#contains", "E")
    expected = [i for i, one in enumerate(verdicts) if not one.is_ood and "e" in texts[i].lower()]
    assert page.inner_text("#download") == f"Download {len(expected)} rows as CSV"
    page.fill("#contains", "")
    page.locator("input[value=all]").check(force=True)
    with page.expect_download() as download:
        page.click("#download")
    assert download.value.suggested_filename == "in-judged.csv"
    rows = list(
        csv.DictReader(io.StringIO(Path(download.value.path()).read_text("utf-8-sig"), newline=""))
    )
    assert len(rows) == len(texts)
    for row, text, verdict in zip(rows, texts, verdicts, strict=True):
        assert row["what they wrote"] == ("'" + text if text.startswith("=") else text)
        assert float(row["ood_score"]) == verdict.ood_score
        assert row["is_ood"] == str(verdict.is_ood).lower()
        assert row["label"] == verdict.label
    page.get_by_role("button", name=SCRIPT).click()
    assert page.input_value("#text") == SCRIPT


@needs_chromium
def test_a_busy_service_is_waited_for_and_a_long_file_can_be_stopped(chromium, service):
    with opened(chromium, service, network_errors=True) as page:
        page.wait_for_selector("#legend button")
        stop_and_go_on(page)


def stop_and_go_on(page):
    page.evaluate(
        DROP, ["long.jsonl", "\n".join(json.dumps({"text": f"pay bill {i}"}) for i in range(1500))]
    )
    busy = {"type": "urn:outscope:problem:busy", "detail": "too much is waiting", "status": 429}
    answers = iter([{"status": 429, "headers": {"Retry-After": "1"}, "body": json.dumps(busy)}])

    def answer(route):
        told = next(answers, None)
        if told is None:
            route.continue_()
        else:
            route.fulfill(content_type="application/problem+json", **told)

    page.route("**/v1/explain", answer)
    page.click("#start")
    expect(page, "#progress-words", "busy; going on in 1 s")
    expect(page, "#progress-words", re.compile("^[1-9].* of 1,500"))
    page.click("#cancel")
    expect(page, "#file-said", "Cancelled.")
    done = page.locator("#progress").evaluate("bar => bar.value")
    assert 0 < done < 1500
    assert page.inner_text("#again") == "Judge the rest"
    page.click("#again")
    expect(page, "#file-said", "1,500 texts judged.")
    assert page.locator("#again").is_hidden()


UNREADABLE = (
    ("a.pdf", "x", "choose a .txt, .csv or .jsonl file"),
    ("a.jsonl", '{"text": "x"}\n{"text": ', "Line 2 is not JSON"),
    ("a.csv", 'text\n"never closed', "row 2 is never closed"),
    ("a.txt", "\n \n", "has no texts"),
)


@needs_chromium
def test_files_that_cannot_be_read_are_told_in_words(page):
    for name, content, words in UNREADABLE:
        page.evaluate(DROP, [name, content])
        expect(page, "#file-error", words)
        assert page.locator("#chosen").is_hidden()


@needs_chromium
def test_teaching_asks_for_the_admin_key_and_can_be_undone(chromium, service, detector):
    text = "bike lock wheel brake"
    with opened(chromium, service, network_errors=True) as page:
        page.wait_for_selector("#legend button")
        assert judged(page, text) == "In scope: ride"
        before = detector.predict([text])[0].ood_score
        page.click("#refuse")
        page.wait_for_selector("#key-dialog[open]")
        page.fill("#key-value", "not-the-admin-key")
        page.keyboard.press("Enter")
        expect(page, "#key-error", "does not know this key")
        page.fill("#key-value", ADMIN)
        page.keyboard.press("Enter")
        expect(page, "#taught", "now out of scope")
        [after] = asked_of(service, "score", texts=[text])["results"]
        assert after["is_ood"]
        assert f"went from {before:.3f} to {after['ood_score']:.3f}" in page.inner_text("#taught")
        assert page.inner_text("#decision") == "Out of scope"
        assert f"Refused: like “{text}”" in page.inner_text("#because")
        page.click("#undo")
        expect(page, "#taught", "now in scope")
        assert asked_of(service, "score", texts=[text])["results"][0]["ood_score"] == before
        assert page.locator("#undo").is_hidden()


@needs_chromium
def test_a_rate_can_be_kept_for_everyone(chromium, service):
    with opened(chromium, service, network_errors=True) as page:
        page.wait_for_selector("#legend button")
        page.locator("#rate").fill("200")
        page.click("#keep-rate")
        page.fill("#key-value", ADMIN)
        page.keyboard.press("Enter")
        page.wait_for_selector("#keep-rate", state="hidden")
        assert asked_of(service, "threshold")["fpr"] == 0.1
        page.locator("#rate").fill("170")
        page.click("#keep-rate")
        page.wait_for_selector("#keep-rate", state="hidden")
        assert asked_of(service, "threshold")["fpr"] == 0.05


@needs_chromium
def test_a_service_with_keys_is_opened_by_the_right_one(chromium, detector):
    keys = Keys({hash_key(USER): "u"}, {})
    with (
        running({"texts": detector}, keys=keys) as port,
        opened(chromium, port, network_errors=True) as page,
    ):
        expect(page, "#banner", "needs an API key")
        page.evaluate(DROP, ["a.txt", "pay"])
        page.click("#start")
        expect(page, "#file-error", "no model to judge with yet")
        page.locator("#rate").fill("20")
        page.click("#banner button")
        page.fill("#key-value", "sixteen wrong letters")
        page.keyboard.press("Enter")
        expect(page, "#key-error", "no spaces")
        page.fill("#key-value", "sixteen-wrong-letters")
        page.keyboard.press("Enter")
        expect(page, "#key-error", "does not know this key")
        page.fill("#key-value", USER)
        page.keyboard.press("Enter")
        page.wait_for_selector("#legend button")
        assert page.locator("#banner").is_hidden()
        assert judged(page, INSIDE) == "In scope: ride"
        page.click("#refuse")
        expect(page, "#teach-error", "Changes are switched off")


@needs_chromium
def test_a_stopped_service_is_told_and_found_again(chromium, detector):
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(contextlib.ExitStack())
        port = service.enter_context(
            running({"texts": detector}, settings=Settings(text_length=100))
        )
        page = stack.enter_context(opened(chromium, port, network_errors=True))
        page.wait_for_selector("#legend button")
        page.fill("#text", "pay bill " * 20)
        expect(page, "#text-error", "the limit is 100 characters")
        judged(page, INSIDE)
        page.context.set_offline(True)
        page.fill("#text", OUTSIDE)
        expect(page, "#text-error", "Is it still running?")
        expect(page, "#banner", "does not answer")
        page.context.set_offline(False)
        expect(page, "#decision", "Out of scope")
        page.wait_for_selector("#banner", state="hidden")
        service.close()
        page.fill("#text", INSIDE)
        expect(page, "#text-error", "Is it still running?")
        page.evaluate(DROP, ["a.txt", "pay\nbill"])
        page.click("#start")
        expect(page, "#file-error", "0 of 2 texts are judged")


@needs_chromium
def test_everything_works_from_the_keyboard(page, detector):
    focused = "document.activeElement.id"
    page.keyboard.press("Tab")
    assert page.inner_text(":focus") == "Skip to the text box"
    page.keyboard.press("Enter")
    assert page.evaluate(focused) == "text"
    page.keyboard.type(INSIDE)
    expect(page, "#decision", "In scope: ride")
    order = []
    for _ in range(11):
        page.keyboard.press("Tab")
        order.append(page.evaluate(focused))
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline != "none"
    wanted = ["refuse", "accept", "rate", "zoom-out", "zoom-in", "zoom-fit", "canvas"]
    assert [name for name in order if name in wanted] == wanted
    page.focus("#rate")
    page.keyboard.press("ArrowRight")
    assert page.get_attribute("#rate", "aria-valuetext") == "5.1 % false alarms"
    page.focus("#canvas")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("#tip:visible")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    text = page.inner_text("#tip").split("\n")[-1]
    assert text in page.inner_text("#map-said")
    page.keyboard.press("Enter")
    assert page.input_value("#text") == text
    assert page.evaluate(focused) == "text"
    page.focus("#file")
    assert (
        page.evaluate("getComputedStyle(document.activeElement.parentElement).outlineStyle")
        != "none"
    )


@needs_chromium
def test_script_in_texts_of_the_model_is_shown_as_text(chromium):
    words = ["lock", "wheel", "brake", "saddle", "station", "ride", "unlock", "pump"]
    topics = [f"{SCRIPT} bike {word}" for word in words]
    texts = [f"{one} {i}" for one in topics for i in range(8)]
    model = TextDetector(words_to_rows).fit(texts, [f"<b>{text[-3:-2]}</b>" for text in texts])
    with running({"<i>texts": model, "two": model}) as port, opened(chromium, port) as page:
        page.wait_for_selector("#legend button")
        judged(page, texts[0])
        assert SCRIPT in page.inner_text("#reasons")
        assert "<b>" in page.inner_text("#legend")
        page.focus("#canvas")
        page.keyboard.press("ArrowRight")
        assert SCRIPT in page.inner_text("#tip")
        assert page.locator("main img, main script").count() == 0


@needs_chromium
def test_models_of_vectors_take_numbers(page, rows):
    page.select_option("#model", "rows")
    expect(page, "#about", "a model of vectors")
    page.fill("#text", "1, 2, 3")
    expect(page, "#text-error", "paste 8 numbers")
    numbers = [2.0] * 8
    judged(page, json.dumps(numbers))
    score = rows.ood_score(np.array([numbers]))[0]
    assert page.text_content(".point-word") == f"{score:.3f}"
    assert page.locator("#teach").is_hidden()
    assert page.locator("#files").is_hidden()


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_phone_shows_it_all_without_scrolling_sideways(chromium, service, scheme, tmp_path):
    (tmp_path / "some.txt").write_text("pay bill\n" + "a" * 300 + "\n" + OUTSIDE)
    phone = {
        "width": 390,
        "height": 844,
        "has_touch": True,
        "is_mobile": True,
        "color_scheme": scheme,
    }
    with opened(chromium, service, **phone) as page:
        page.wait_for_selector("#legend button")
        judged(page, f"{OUTSIDE} {'x' * 120}")
        page.set_input_files("#file", tmp_path / "some.txt")
        page.click("#start")
        page.wait_for_selector("#going", state="hidden")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        dark = int(re.findall(r"\d+", ground)[0]) < 80
        assert dark == (scheme == "dark")
        page.click("#theme")
        page.click("#theme")
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
