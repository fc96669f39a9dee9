"""A browser on the page of a device: `python chromium.py CHECK URL CODE [JSON]`, with playwright.

Prints one line of JSON with what was found. Chromium is that of the system (`EDGED_CHROMIUM`, or where Debian
has it).
"""

# mypy: ignore-errors
# ruff: noqa: ANN001, ANN003, ANN201, ANN202, T201  a program that runs where pytest is not

from __future__ import annotations

import base64
import json
import os
import sys
import time
from contextlib import contextmanager
from importlib import resources
from itertools import product

from playwright.sync_api import expect, sync_playwright

CHROMIUM = os.environ.get("EDGED_CHROMIUM", "/usr/bin/chromium")
OPTIONS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
DESK, PHONE = {"width": 1280, "height": 800}, {"width": 360, "height": 740}
THEMES = ("light", "dark")
TABS = 7
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""

# Contrast (WCAG 2.1, 1.4.11) of what a screenshot has within rectangles, against its commonest colour.
CONTRAST = """async ([picture, boxes]) => {
  const image = new Image();
  image.src = "data:image/png;base64," + picture;
  await image.decode();
  const canvas = new OffscreenCanvas(image.width, image.height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0);
  const linear = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const luminance = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const pixels = (x, y, w, h) => {
    const { data } = context.getImageData(x, y, Math.max(1, w), Math.max(1, h)), found = [];
    for (let i = 0; i < data.length; i += 4) found.push([data[i], data[i + 1], data[i + 2]]);
    return found;
  };
  const counts = new Map();
  for (const one of pixels(0, 0, image.width, image.height)) {
    counts.set(one.join(), (counts.get(one.join()) ?? 0) + 1);
  }
  const paper = [...counts].sort((a, b) => b[1] - a[1])[0][0].split(",").map(Number);
  const ratio = (one) => {
    const [a, b] = [luminance(one), luminance(paper)].sort((p, q) => q - p);
    return (a + 0.05) / (b + 0.05);
  };
  return boxes.map((box) => Math.max(...pixels(...box).map(ratio)));
}"""
BOXES = """(svg) => {
  const own = svg.getBoundingClientRect();
  const of = (one) => { const r = one.getBoundingClientRect();
    return [r.x - own.x, r.y - own.y, r.width, r.height].map(Math.round); };
  const [x, y, w, h] = of(svg.querySelector(".axes"));
  const named = { upright: [x, y + 2, 2, h - 8], level: [x + 4, y + h - 2, w - 8, 3] };
  [...svg.querySelectorAll("text.axis")].forEach((text, i) => { named["text " + i] = of(text); });
  return named;
}"""


@contextmanager
def chromium():
    """The program."""
    with sync_playwright() as playwright:
        program = playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield program
        program.close()


def fresh(program, **options):
    """A context without any past, and what its console and its policy of content say."""
    context, said = program.new_context(**options), []
    context.on("console", lambda message: message.type != "verbose" and said.append(message.text))
    context.on("weberror", lambda problem: said.append(str(problem.error)))
    return context, said


@contextmanager
def browser(**options):
    """One context in a program of its own."""
    with chromium() as program:
        yield fresh(program, **options)


def enter(context):
    """The page, as somebody who may steer."""
    page = context.new_page()
    page.goto(URL)
    if page.locator("#leave").count() == 0:
        page.fill("#code", CODES.pop())
        page.keyboard.press("Enter")
        expect(page.locator("#leave")).to_be_visible()
    expect(page.locator("#line")).to_have_text("live")
    return page


def do(page, button, seen, *, text=None):
    """Press a button, say yes; seconds until the page shows what came of it."""
    button.click()
    dialog = page.locator("#ask")
    expect(dialog).to_be_visible()
    page.locator("#ask-yes").click()
    began = time.monotonic()
    if text is None:
        expect(seen).to_be_visible(timeout=10000)
    else:
        expect(seen).not_to_have_text(text, timeout=10000)
    return round(time.monotonic() - began, 3)


def actions():
    """Each action changes what is shown: how soon; and saying no does nothing."""
    with browser(viewport=DESK) as (context, said):
        page = enter(context)
        steer, found = page.locator("#actions"), {}
        requests = page.locator("#requests .request").first
        label = requests.inner_text()
        found["label"] = do(page, requests.get_by_role("button").first, requests, text=label)
        steer.get_by_role("button", name="Pause training").click()
        page.locator("#ask").get_by_role("button", name="Cancel").click()
        expect(page.locator("#ask")).to_be_hidden()
        resume = steer.get_by_role("button", name="Resume training")
        found["declined"] = resume.count() == 0
        found["pause"] = do(page, steer.get_by_role("button", name="Pause training"), resume)
        pause = steer.get_by_role("button", name="Pause training")
        found["resume"] = do(page, resume, pause)
        runs = page.locator("#training tbody tr").first
        before = runs.inner_text() if runs.count() else page.locator("#training p").first.inner_text()
        told = runs if runs.count() else page.locator("#training p").first
        found["train"] = do(page, steer.get_by_role("button", name="Train now"), told, text=before)
        back = steer.get_by_role("button", name="Roll back")
        expect(back).to_be_visible(timeout=60000)
        serving = page.locator("#model dd b")
        found["rollback"] = do(page, back, serving, text=serving.inner_text())
        pin = page.locator("#model tbody tr", has_text="serving").get_by_role("button", name="Pin")
        unpin = steer.get_by_role("button", name="Unpin")
        found["pin"] = do(page, pin, unpin)
        evaluated = page.locator("#actions .evaluations")
        found["evaluate"] = do(page, steer.get_by_role("button", name="Evaluate"), evaluated)
        with page.expect_download() as download:
            steer.get_by_role("link", name="Download report").click()
        found["report"] = download.value.suggested_filename
        page.locator("#leave").click()
        expect(page.locator("#code")).to_be_visible()
        return found | {"said": said}


def keyboard():
    """Everything with the keyboard alone: a button is reached, asks, is declined, and has the focus again."""
    with browser(viewport=DESK) as (context, said):
        page = enter(context)
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.dataset.command") == "train":
                break
        page.keyboard.press("Enter")
        expect(page.locator("#ask")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#ask")).to_be_hidden()
        page.wait_for_timeout(2500)  # refreshes in between leave the focus where it is
        return {"focus": page.evaluate("document.activeElement.dataset.command"), "said": said}


def looks():
    """Accessibility, widths and contrast in both themes, on a phone and a desk."""
    axe = resources.files("axe_playwright_python").joinpath("axe.min.js").read_text()
    found = {"axe": [], "wide": [], "contrast": {}, "said": []}
    with chromium() as program:
        for theme, (place, viewport) in product(THEMES, (("desk", DESK), ("phone", PHONE))):
            context, said = fresh(program, viewport=viewport, color_scheme=theme)
            page, name = enter(context), f"{theme} {place}"
            picture = page.locator("svg.timeline:visible")
            expect(picture).to_be_visible()
            expect(page.locator("#teach svg path.curve").first).to_be_visible()
            page.locator("#teach-picture").focus()
            for _ in range(5):
                page.keyboard.press("Shift+ArrowRight")
            expect(page.locator("#teach-panel")).to_be_visible()
            page.locator("#teach-more summary").click()
            page.route("**/api/page*", lambda route: route.abort())  # it stays as it is now
            page.wait_for_timeout(500)
            page.evaluate(axe)
            told = page.evaluate("axe.run()")
            found["axe"] += [f"{name} {v['id']}: {v['nodes'][0]['html']}" for v in told["violations"]]
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > viewport["width"]:
                found["wide"].append([name, width])
            boxes = picture.evaluate(BOXES)
            shot = base64.b64encode(picture.screenshot()).decode()
            ratios = context.new_page().evaluate(CONTRAST, [shot, list(boxes.values())])
            found["contrast"][name] = dict(zip(boxes, ratios, strict=True))
            found["said"] += [line for line in said if "ERR_FAILED" not in line]  # what was cut off above
            context.close()
    return found


def tabs():
    """Seven tabs, of which one is seen, and then another; how many streams the device has open for them."""
    with browser(viewport=DESK) as (context, said):
        pages = []
        for _ in range(TABS):
            if pages:
                pages[-1].evaluate(HIDE, True)
                expect(pages[-1].locator("#line")).to_have_text("Paused in the background")
            pages.append(enter(context))
        seen, steer, resume = pages[0], pages[-1].locator("#actions"), "Resume training"
        expect(pages[-1].locator("#line")).to_have_text("live")
        do(
            pages[-1],
            steer.get_by_role("button", name="Pause training"),
            steer.get_by_role("button", name=resume),
        )
        figures = context.request.get(URL + "metrics").text()
        streams = next(line for line in figures.splitlines() if line.startswith("edged_http_event_streams "))
        began = time.monotonic()
        seen.evaluate(HIDE, False)
        expect(seen.locator("#actions").get_by_role("button", name=resume)).to_be_visible()
        followed = time.monotonic() - began
        steer.get_by_role("button", name=resume).click()
        pages[-1].locator("#ask-yes").click()
        expect(seen.locator("#actions").get_by_role("button", name="Pause training")).to_be_visible()
        expect(seen.locator("#line")).to_have_text("live")
        return {"tabs": len(pages), "seconds": followed, "streams": float(streams.split()[1]), "said": said}


def stored(context, name):
    """The label that a sample has by now; `name` is its id."""
    return context.request.get(f"{URL}api/labels/samples/{name.split('-')[1]}").json()["label"]


def yes(page):
    """Agree to what the page asks."""
    expect(page.locator("#ask")).to_be_visible()
    page.locator("#ask-yes").click()


def labels():
    """Suspect labels are corrected in bulk, with the keyboard, taken back and confirmed; and on the map."""
    with browser(viewport=DESK) as (context, said):
        page, found = enter(context), {}
        section = page.locator("#suspects")
        boxes = section.locator("input[name=suspect]")
        expect(boxes.nth(2)).to_be_visible()
        picked = [boxes.nth(i).get_attribute("value") for i in range(3)]
        answers = [boxes.nth(i).get_attribute("data-answer") for i in range(3)]
        before = [stored(context, name) for name in picked]
        boxes.first.focus()
        page.keyboard.press("Space")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
        section.get_by_role("button", name="Change").click()
        yes(page)
        gone = [section.locator(f"input[value='{name}']") for name in picked]
        expect(gone[0]).to_have_count(0)
        expect(gone[1]).to_have_count(0)
        found["changed"] = [stored(context, name) for name in picked[:2]] == answers[:2]
        found["others"] = stored(context, picked[2]) == before[2]
        section.get_by_role("button", name="Undo").click()
        expect(gone[0]).to_have_count(1)
        found["undone"] = [stored(context, name) for name in picked] == before
        gone[0].check()
        section.locator("#suspects-right").click()
        yes(page)
        expect(gone[0]).to_have_count(0)
        found["kept"] = stored(context, picked[0]) == before[0]
        page.reload()
        expect(boxes.first).to_be_visible()
        found["confirmed"] = gone[0].count() == 0
        return found | _on_the_map(page, context) | {"said": said}


def _on_the_map(page, context):
    section, found = page.locator("#map"), {}
    section.scroll_into_view_if_needed()
    picture = section.get_by_role("application")
    expect(picture).to_be_visible()
    found["points"] = picture.locator("path").count()
    found["classes"] = section.locator(".classes li").count() - 1  # and the ring
    picture.focus()
    for key in ("Home", "ArrowRight", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    card = section.locator("#map-card")
    expect(card.locator("b")).to_contain_text("press-")
    other = {"low": "high", "high": "low"}
    with page.expect_request("**/api/commands/label") as asked:
        label = card.locator("p").nth(1).inner_text().split(";")[0].removeprefix("Labelled ")
        card.locator("select").select_option(other[label])
        card.get_by_role("button", name="Change").click()
        yes(page)
    expect(card).to_contain_text(f"Changed from {label} to {other[label]}")
    (sent,) = asked.value.post_data_json["labels"]
    found["corrected"] = stored(context, sent["id"]) == other[label]
    return found


def across(picture, ts):
    """Where in the window a time of the timeline is; sections above it may have grown."""
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    start, end = (float(picture.get_attribute(f"data-{name}")) for name in ("from", "to"))
    return box["x"] + (ts - start) / (end - start) * box["width"], box["y"] + box["height"] / 2


def drag(page, picture, start, end):
    """Drag over a stretch; what the page says of it."""
    page.mouse.move(*across(picture, start))
    page.mouse.down()
    page.mouse.move(*across(picture, end), steps=4)
    page.mouse.up()
    chosen = page.locator("#teach-chosen")
    expect(chosen).to_contain_text("samples from")
    return chosen.inner_text()


def call(page, name):
    """Give what is chosen a name, the one of a class or a new one."""
    known = page.locator("#teach-names").get_by_role("button", name=name, exact=True)
    if known.count():
        known.click()
    else:
        page.locator("#teach-name-field").fill(name)
        page.keyboard.press("Enter")
    expect(page.locator("#teach-said")).to_contain_text(f"now are {name}")


def says(page, picture, ts, name):
    """Wait until the model says so of the sample at a time."""
    page.mouse.move(*across(picture, ts))
    expect(page.locator("#teach-at")).to_contain_text(f"the model says {name}", timeout=10000)


def teach():
    """A person drags over three stretches and names them; how soon the model answers by it."""
    stretches, later, version = json.loads(MORE[0])
    with browser(viewport=DESK) as (context, said):
        page = enter(context)
        began = time.monotonic()
        picture, found = page.locator("#teach-picture"), {"samples": []}
        picture.scroll_into_view_if_needed()
        expect(page.locator("#teach svg path.curve")).to_have_count(3)
        for start, end, name in stretches[:2]:
            found["samples"].append(int(drag(page, picture, start, end).split()[0]))
            call(page, name)
        if version > 1:
            expect(page.locator("#model dd b")).to_have_text(f"version {version}", timeout=90000)
        for ts, name in later[:2]:
            says(page, picture, ts, name)
        found["right"] = round(time.monotonic() - began, 1)
        start, end, name = stretches[2]
        found["samples"].append(int(drag(page, picture, start, end).split()[0]))
        call(page, name)
        named = time.monotonic()
        says(page, picture, later[2][0], name)
        found["new"] = round(time.monotonic() - named, 2)
        for ts, answer in later:
            says(page, picture, ts, answer)
        page.locator("#teach-undo").click()
        expect(page.locator("#teach-said")).to_have_text("Undone.")
        return found | {"said": said}


def teach_by_hand():
    """The keyboard alone, then two taps on a phone: a stretch is chosen, named, taken back."""
    with chromium() as program:
        context, said = fresh(program, viewport=DESK)
        page = enter(context)
        page.locator("#teach-key, [data-go=in]").last.focus()
        picture = page.locator("#teach-picture")
        while not picture.evaluate("(one) => one === document.activeElement"):
            page.keyboard.press("Tab")
        wide = float(picture.get_attribute("data-to")) - float(picture.get_attribute("data-from"))
        page.keyboard.press("+")
        narrow = float(picture.get_attribute("data-to")) - float(picture.get_attribute("data-from"))
        for _ in range(4):
            page.keyboard.press("Shift+ArrowRight")
        expect(page.locator("#teach-chosen")).to_contain_text("samples from")
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "teach-name-field":
                break
        page.keyboard.type("by hand")
        page.keyboard.press("Enter")
        expect(page.locator("#teach-said")).to_contain_text("now are by hand")
        for _ in range(20):
            if page.evaluate("document.activeElement.id") == "teach-undo":
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#teach-said")).to_have_text("Undone.")
        hold = page.locator("#teach-hold")
        hold.get_by_role("button", name="by hand").click()
        expect(page.locator("#teach-holds")).to_contain_text("are labelled by hand")
        hold.get_by_role("button", name="Stop").click()
        expect(page.locator("#teach-holds")).to_contain_text("Nothing is set")
        context.close()
        context, told = fresh(program, viewport=PHONE, has_touch=True, is_mobile=True)
        page = enter(context)
        picture = page.locator("#teach-picture")
        picture.scroll_into_view_if_needed()
        expect(page.locator("#teach svg path.curve")).to_have_count(3)
        box = picture.bounding_box()
        for part in (0.4, 0.6):
            page.touchscreen.tap(box["x"] + part * box["width"], box["y"] + box["height"] / 2)
        expect(page.locator("#teach-chosen")).to_contain_text("samples from")
        return {"zoomed": narrow < wide, "said": said + told}


CHECKS = {check.__name__: check for check in (actions, keyboard, labels, looks, tabs, teach, teach_by_hand)}
NAME, URL, CODES, *MORE = sys.argv[1:]
CODES = CODES.split(",")
print(json.dumps(CHECKS[NAME]()))
