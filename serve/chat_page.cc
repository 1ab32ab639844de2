#include "serve/chat_page.h"

namespace keel::serve {

// It asks nothing of any other host. What the model says is set as text, never as markup.
std::string_view ChatPage() {
  return R"html(<!DOCTYPE html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Keel chat</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 48em; margin: 0 auto; padding: 1em;
         color: #222; background: #fff; }
  #said p { white-space: pre-wrap; overflow-wrap: anywhere; padding: .6em .9em; margin: .6em 0;
            border-radius: .5em; }
  .user { background: #e4edf7; margin-left: 4em !important; }
  .assistant { background: #f2f2f0; margin-right: 4em !important; }
  .error { background: #fbe3e0; }
  form { position: sticky; bottom: 0; background: inherit; padding: .5em 0; }
  textarea { width: 100%; box-sizing: border-box; font: inherit; padding: .5em; }
  label { margin-right: 1em; }
  input { font: inherit; width: 6em; }
  #key { width: 12em; }
  @media (prefers-color-scheme: dark) {
    body { color: #ddd; background: #1c1c1c; }
    .user { background: #24364a; } .assistant { background: #2b2b2b; } .error { background: #4c2621; }
  }
</style>
<h1>Keel: <span id="model">...</span></h1>
<div id="said" aria-live="polite"></div>
<form id="ask">
  <textarea id="text" rows="3" placeholder="Say something; Enter sends, Shift+Enter is a new line"
    aria-label="Message" autofocus></textarea>
  <button id="send">Send</button>
  <button id="stop" type="button" disabled>Stop</button>
  <button id="forget" type="button">Forget</button>
  <label>temperature <input id="temperature" type="number" min="0" step="0.1" value="0.7"></label>
  <label>tokens <input id="tokens" type="number" min="1" value="512"></label>
  <label>key <input id="key" type="password" autocomplete="off"></label>
</form>
<script>
const at = id => document.getElementById(id);
let messages = [], running = null;
const headers = () => at("key").value ? {Authorization: "Bearer " + at("key").value} : {};
function show(kind, text) {
  const p = document.createElement("p");
  p.className = kind;
  p.textContent = text;
  at("said").append(p);
  p.scrollIntoView();
  return p;
}
async function name() {
  const answer = await fetch("v1/models", {headers: headers()});
  at("model").textContent = answer.ok ? (await answer.json()).data[0].id : "which needs a key";
}
// Calls `take` with the object of each event.
async function events(body, take) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const {value, done} = await reader.read();
    if (done) throw new Error("the answer broke off");
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      const event = JSON.parse(part.slice(6));
      if (event.error) throw new Error(event.error.message);
      take(event);
    }
  }
}
async function ask(text) {
  messages.push({role: "user", content: text});
  show("user", text);
  const shown = show("assistant", "");
  let answer = "";
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  try {
    const reply = await fetch("v1/chat/completions", {
      method: "POST", signal: running.signal,
      headers: {"Content-Type": "application/json", ...headers()},
      body: JSON.stringify({messages, stream: true, temperature: +at("temperature").value,
                            max_completion_tokens: +at("tokens").value})});
    if (!reply.ok) throw new Error((await reply.json()).error.message);
    await events(reply.body, event => {
      answer += event.choices[0]?.delta.content ?? "";
      shown.textContent = answer;
    });
    messages.push({role: "assistant", content: answer});
  } catch (error) {
    if (error.name === "AbortError") {
      messages.push({role: "assistant", content: answer});
    } else {
      messages.pop();
      show("error", error.message);
    }
  }
  running = null;
  at("send").disabled = false;
  at("stop").disabled = true;
}
at("ask").onsubmit = event => {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || running) return;
  at("text").value = "";
  ask(text);
};
at("text").onkeydown = event => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("ask").requestSubmit();
};
at("stop").onclick = () => running?.abort();
at("forget").onclick = () => {
  running?.abort();
  messages = [];
  at("said").replaceChildren();
};
at("key").onchange = name;
name();
</script>
</html>
)html";
}

}  // namespace keel::serve
