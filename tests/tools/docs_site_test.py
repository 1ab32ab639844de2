"""The documentation: mkdocs builds it with --strict, so that every page is in the navigation and every link and anchor of docs/ leads somewhere,
and what it builds loads nothing from elsewhere. Links of the pages above docs/ lead to files and headings that are there. A list begins
behind an empty line, without which mkdocs, other than the repository's pages, takes it for the paragraph's text."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

root = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77
wrong = []


def prose(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """As GitHub makes them."""
    found, counts = set(), {}
    for heading in re.findall(r"^#+ (.*)$", prose(path.read_text()), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        found.add(slug if slug not in counts else f"{slug}-{counts[slug]}")
        counts[slug] = counts.get(slug, 0) + 1
    return found


links = 0
for page in [*root.glob("*.md"), *root.glob("docs/**/*.md")]:
    text = prose(page.read_text())
    where = page.relative_to(root)
    for target, _, anchor in re.findall(r"\]\(([^)\s#:]*)(#([^)\s]*))?\)", text):
        links += 1
        path = (page.parent / target).resolve() if target else page
        if not path.exists():
            wrong.append(f"{where}: no file {target}")
        elif anchor and path.suffix == ".md" and anchor not in anchors(path):
            wrong.append(f"{where}: {path.name} has no heading of #{anchor}")
    lines = text.splitlines()
    for before, line in zip(lines, lines[1:]):
        in_list = re.match(r"\s*([-*]|\d+\.) ", before) or before.startswith("  ")
        if re.match(r"([-*]|\d+\.) ", line) and before.strip() and not in_list:
            wrong.append(f"{where}: an empty line is missing before the list that begins with: {line}")
if links < 100:
    wrong.append(f"{links} links were found: the pages were not read")

there = importlib.util.find_spec("mkdocs") and importlib.util.find_spec("material")
if there:
    with tempfile.TemporaryDirectory() as out:
        done = subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", out], cwd=root, text=True,
                              capture_output=True, check=False, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})  # fmt: skip
        if done.returncode != 0:
            wrong.append(done.stdout + done.stderr)
        built = list(pathlib.Path(out).rglob("*.html"))
        if done.returncode == 0 and len(built) < 40:
            wrong.append(f"the site has {len(built)} pages")
        for page in built:
            wrong += [f"the site's {page.name} loads {url}"
                      for url in re.findall(r"<(?:script|img|iframe|link)\b[^>]*?(?:src|href)=\"?(https?:[^\s\">]+)", page.read_text())]
print("\n".join(wrong) or f"{links} links lead somewhere")
if wrong:
    sys.exit(1)
if not there:
    print("SKIPPED: mkdocs and mkdocs-material are not there (requirements-docs.txt): the site was not built")
    sys.exit(SKIPPED)
