"""A hook of mkdocs.yml: what becomes, on the site, of links that lead out of docs/, which work in the repository alone. With repo_url in mkdocs.yml
they lead there; without, the path stands behind the link's text."""

import logging
import pathlib
import re

log = logging.getLogger("mkdocs.hooks.site_links")
LINK = re.compile(r"\[([^\]\n]*)\]\(((?:\.\./)+[^)#\s]*)(#[^)\s]*)?\)")


def on_page_markdown(markdown, page, config, **_):
    docs = pathlib.Path(config["docs_dir"]).resolve()
    root = docs.parent

    def outside(link):
        target = (docs / page.file.src_uri).parent.joinpath(link[2]).resolve()
        if target.is_relative_to(docs):
            return link[0]
        if not target.exists():
            log.warning("%s: no file %s", page.file.src_uri, link[2])
        path = target.relative_to(root)
        if config["repo_url"]:
            return f"[{link[1]}]({config['repo_url'].rstrip('/')}/blob/main/{path}{link[3] or ''})"
        return f"{link[1]} (`{path}`)" if link[1].strip("`") != str(path) else f"`{path}`"

    return LINK.sub(outside, markdown)
