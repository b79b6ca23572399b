"use strict";

// The page renders /openapi.json.

const methods = ["get", "post", "put", "patch", "delete"];
let doc;

// make returns an element with a class and children: texts, elements, or nothing.
function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children.filter((c) => c !== undefined && c !== null && c !== ""));
  return e;
}

function resolve(node) {
  let found = node;
  while (found && found.$ref) {
    found = found.$ref
      .slice(2)
      .split("/")
      .reduce((at, part) => at[part.replaceAll("~1", "/").replaceAll("~0", "~")], doc);
  }
  return found;
}

// prose returns the paragraphs of a text, with **bold** words.
function prose(text) {
  return (text || "")
    .split(/\n\n+/)
    .filter(Boolean)
    .map((paragraph) => {
      const p = make("p");
      paragraph.split("**").forEach((part, i) => p.append(i % 2 ? make("strong", "", part) : part));
      return p;
    });
}

function typeName(schema) {
  if (!schema) return "";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.allOf) return typeName(schema.allOf[0]);
  if (schema.anyOf) return schema.anyOf.map(typeName).join(" or ");
  const types = [schema.type || "any value"].flat();
  return types
    .map((type) => {
      if (type === "array") return "list of " + typeName(schema.items);
      if (type === "object" && schema.additionalProperties && schema.additionalProperties !== true)
        return "map of " + typeName(schema.additionalProperties);
      return schema.format && type !== "null" ? `${type} (${schema.format})` : type;
    })
    .join(" or ");
}

function limits(schema) {
  const all = [];
  const values = schema.enum || (schema.items && schema.items.enum);
  if (values) all.push("One of " + values.map((v) => (v === "" ? "empty" : v)).join(", ") + ".");
  if (schema.minimum !== undefined && schema.maximum !== undefined)
    all.push(`From ${schema.minimum} to ${schema.maximum}.`);
  else if (schema.minimum !== undefined) all.push(`At least ${schema.minimum}.`);
  else if (schema.maximum !== undefined) all.push(`At most ${schema.maximum}.`);
  if (schema.maxLength) all.push(`At most ${schema.maxLength} characters.`);
  if (schema.maxItems) all.push(`At most ${schema.maxItems} entries.`);
  return all.join(" ");
}

// inner returns the object schema of a field or of its elements; null without one.
function inner(schema) {
  const found = resolve(schema);
  if (!found) return null;
  if (found.properties) return found;
  if (found.items) return inner(found.items);
  if (found.allOf) return inner(found.allOf[0]);
  if (found.anyOf) return found.anyOf.map(inner).find(Boolean) || null;
  if (typeof found.additionalProperties === "object") return inner(found.additionalProperties);
  return null;
}

// fields lists an object's properties. Nested objects unfold. inRequest omits read-only properties.
function fields(schema, inRequest, required = []) {
  const found = inner(schema);
  const list = make("dl", "fields");
  if (!found) return list;
  const needed = new Set([...(found.required || []), ...required]);
  const neededFirst = Object.entries(found.properties).sort(([a], [b]) => needed.has(b) - needed.has(a));
  for (const [name, property] of inRequest ? neededFirst : Object.entries(found.properties)) {
    if (inRequest ? property.readOnly : property.writeOnly) continue;
    const said = property.description || resolve(property).description || "";
    list.append(
      make(
        "dt",
        "",
        make("code", "", name),
        make("span", "type", typeName(property)),
        needed.has(name) && inRequest ? make("span", "mark needed", "required") : null,
        property.writeOnly ? make("span", "mark", "write-only") : null,
      ),
      make("dd", "", said, " ", limits(property)),
    );
    const below = inner(property);
    if (below && Object.keys(below.properties).length) {
      list.append(
        make(
          "dd",
          "",
          unfolding("fields", () => fields(property, inRequest)),
        ),
      );
    }
  }
  return list;
}

function unfolding(label, content) {
  const d = make("details", "part", make("summary", "", label));
  d.addEventListener("toggle", () => {
    if (d.open && d.children.length === 1) d.append(content());
  });
  return d;
}

function copied(text) {
  const button = make("button", "", "Copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      const range = document.createRange();
      range.selectNodeContents(button.previousSibling);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      button.textContent = "Selected";
    }
    setTimeout(() => {
      button.textContent = "Copy";
    }, 1500);
  });
  return make("div", "copied", make("pre", "", text), button);
}

const json = (value) => JSON.stringify(value, null, 2);

// short returns JSON on one line, or on several lines when it is long.
const short = (value) => (JSON.stringify(value).length < 90 ? JSON.stringify(value) : json(value));

const quoted = (text) => "'" + text.replaceAll("'", "'\\''") + "'";

// keysOf returns the keys of an operation's examples, in the order of the document.
function keysOf(op) {
  const keys = new Map();
  for (const part of described(op)) {
    for (const [key, example] of Object.entries(part.examples || {})) keys.set(key, example.summary);
  }
  return keys;
}

// described returns all parts of an operation that can have examples.
function described(op) {
  const bodies = op.requestBody ? Object.values(resolve(op.requestBody).content) : [];
  return [
    ...(op.parameters || []).map(resolve),
    ...bodies,
    ...Object.values(resolve(op.responses["200"]).content || {}),
  ];
}

const valueOf = (part, key) => (part.examples && part.examples[key] ? part.examples[key].value : undefined);

// address returns the URL of an example.
function address(path, op, key) {
  const query = [];
  for (const p of (op.parameters || []).map(resolve)) {
    const value = valueOf(p, key);
    if (value === undefined) continue;
    const text = encodeURIComponent([value].flat().join(",")).replaceAll("%2F", "/").replaceAll("%2C", ",");
    if (p.in === "path") path = path.replace(`{${p.name}}`, text);
    if (p.in === "query") query.push(p.name + "=" + text);
  }
  return new URL(".", location.href).href.replace(/\/$/, "") + path + (query.length ? "?" + query.join("&") : "");
}

// curl returns a command that sends the request of an example.
function curl(method, path, op, key) {
  const lines = [
    `curl ${method === "get" ? "" : "-X " + method.toUpperCase() + " "}${quoted(address(path, op, key))}`,
  ];
  if (!op.security || op.security.length) lines.push('-H "Authorization: Bearer $ANNEAL_API_KEY"');
  for (const p of (op.parameters || []).map(resolve)) {
    const value = valueOf(p, key);
    if (p.in === "header" && value !== undefined) lines.push("-H " + quoted(p.name + ": " + value));
  }
  const responses = resolve(op.responses["200"]).content || {};
  const streamed = responses["text/event-stream"];
  if (method === "get" && streamed && valueOf(streamed, key) !== undefined)
    lines.push("-H 'Accept: text/event-stream'");
  const content = (op.requestBody && resolve(op.requestBody).content) || {};
  for (const [name, value] of Object.entries(valueOf(content["multipart/form-data"] || {}, key) || {})) {
    for (const one of [value].flat()) lines.push("-F " + quoted(name + "=" + one));
  }
  const body = valueOf(content["application/json"] || {}, key);
  if (body !== undefined) lines.push("-H 'Content-Type: application/json'", "-d " + quoted(short(body)));
  return lines.join(" \\\n  ");
}

// files shows the text files that an example uploads.
function files(op, key) {
  const content = (op.requestBody && resolve(op.requestBody).content["multipart/form-data"]) || {};
  const example = (content.examples || {})[key] || {};
  return Object.entries(example["x-files"] || {}).map(([name, text]) =>
    unfolding(name, () => copied(text.trimEnd())),
  );
}

// examples shows the requests and responses of an operation.
function examples(method, path, op) {
  const parts = [];
  for (const [key, summary] of keysOf(op)) {
    const inside = [copied(curl(method, path, op, key)), ...files(op, key)];
    for (const content of Object.values(resolve(op.responses["200"]).content || {})) {
      const value = valueOf(content, key);
      if (value !== undefined)
        inside.push(unfolding("response", () => copied(typeof value === "string" ? value : json(value))));
    }
    parts.push(make("h4", "", summary), ...inside);
  }
  return parts.length ? [make("h3", "", parts.length > 3 ? "Examples" : "Example"), ...parts] : [];
}

// sample returns a text with the example of a parameter.
function sample(p) {
  const first = p.examples ? Object.values(p.examples)[0].value : p.example;
  if (first === undefined || p.in === "path") return null;
  return make("span", "soft", " Example: ", make("code", "", [first].flat().join(",")));
}

function parameters(op) {
  const list = make("dl", "fields");
  for (const reference of op.parameters || []) {
    const p = resolve(reference);
    list.append(
      make(
        "dt",
        "",
        make("code", "", p.name),
        make("span", "type", `${p.in}, ${typeName(p.schema)}`),
        p.required ? make("span", "mark needed", "required") : null,
      ),
      make("dd", "", p.description, " ", limits(p.schema), sample(p)),
    );
  }
  return list;
}

function requestBody(op) {
  if (!op.requestBody) return [];
  const body = resolve(op.requestBody);
  const parts = [make("h3", "", "Body", body.required ? "" : make("span", "mark", "optional"))];
  for (const [media, content] of Object.entries(body.content)) {
    const required = content.schema.allOf ? content.schema.allOf.flatMap((part) => part.required || []) : [];
    parts.push(
      make("p", "soft", make("code", "", media), " ", typeName(content.schema)),
      fields(content.schema, true, required),
    );
  }
  return parts;
}

function responses(op) {
  const parts = [],
    others = make("div", "statuses");
  for (const [status, reference] of Object.entries(op.responses)) {
    const response = resolve(reference);
    if (status !== "200") {
      others.append(make("code", "", status), make("span", "", response.description));
      continue;
    }
    parts.push(make("h3", "", "Response"));
    for (const [media, content] of Object.entries(response.content || {})) {
      parts.push(
        make(
          "p",
          "soft",
          make("code", "", media),
          " ",
          typeName(content.schema),
          content.schema.description ? ". " + content.schema.description : "",
        ),
      );
      const below = inner(content.schema);
      if (below) parts.push(unfolding("fields", () => fields(content.schema, false)));
    }
  }
  return [...parts, make("h3", "", "Errors"), others];
}

function pathParts(path) {
  const span = make("span", "path");
  path.split(/(\{[^}]+\})/).forEach((part) => span.append(part.startsWith("{") ? make("b", "", part) : part));
  return span;
}

function operation(method, path, op) {
  const d = make(
    "details",
    "operation",
    make(
      "summary",
      "",
      make("span", "method " + method, method.toUpperCase()),
      pathParts(path),
      make("span", "summary", op.summary),
    ),
  );
  d.id = op.operationId;
  d.addEventListener("toggle", () => {
    if (!d.open || d.children.length > 1) return;
    d.append(
      make(
        "div",
        "inside",
        ...prose(op.description),
        ...examples(method, path, op),
        make("h3", "", "Parameters"),
        parameters(op),
        ...requestBody(op),
        ...responses(op),
      ),
    );
  });
  return d;
}

// words returns the text of an operation that the filter searches.
function words(method, path, op) {
  const body = op.requestBody && resolve(op.requestBody).content["application/json"];
  const named = body && inner(body.schema) ? Object.keys(inner(body.schema).properties) : [];
  return [method, path, op.operationId, op.summary, op.description, ...named].join(" ").toLowerCase();
}

function show() {
  const main = document.getElementById("main"),
    nav = document.getElementById("nav"),
    found = [];
  main.replaceChildren(
    make("h1", "", doc.info.title, " ", make("span", "soft", doc.info.version)),
    ...prose(doc.info.description),
  );
  for (const tag of doc.tags) {
    const section = make("section", "", make("h2", "", tag.name), make("p", "soft", tag.description));
    const menu = make("div", "", Object.assign(make("a", "tag", tag.name), { href: "#tag-" + tag.name }));
    section.id = "tag-" + tag.name;
    for (const [path, item] of Object.entries(doc.paths)) {
      for (const method of methods) {
        const op = item[method];
        if (!op || !op.tags.includes(tag.name)) continue;
        const shown = operation(method, path, op);
        const link = Object.assign(make("a", "", op.summary), { href: "#" + op.operationId });
        section.append(shown);
        menu.append(link);
        found.push({ shown, link, section, menu, words: words(method, path, op) });
      }
    }
    main.append(section);
    nav.append(menu);
  }
  return found;
}

function filter(found, text) {
  const wanted = text.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = new Set();
  for (const one of found) {
    const fits = wanted.every((word) => one.words.includes(word));
    one.shown.hidden = one.link.hidden = !fits;
    if (fits) kept.add(one.section).add(one.menu);
  }
  for (const one of found) one.section.hidden = one.menu.hidden = !kept.has(one.section);
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target && target.tagName === "DETAILS") {
    target.open = true;
    target.scrollIntoView();
  }
}

async function start() {
  try {
    const response = await fetch("openapi.json");
    if (!response.ok) throw new Error("HTTP status " + response.status);
    doc = await response.json();
  } catch (error) {
    document.getElementById("wait").textContent =
      "openapi.json could not be loaded (" + error.message + "): reload the page.";
    return;
  }
  const found = show(),
    box = document.getElementById("filter");
  box.addEventListener("input", () => filter(found, box.value));
  addEventListener("hashchange", openTarget);
  openTarget();
}

start();
