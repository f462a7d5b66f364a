// A request as a command or a program that somebody can run. A key is a variable, never the page's own.

const KEY = "PAGEANT_API_KEY";

const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(body, base) {
  return [
    `curl ${quoted(`${base}v1/chat/completions`)} \\`,
    `  -H "Authorization: Bearer $${KEY}" -H 'Content-Type: application/json' \\`,
    `  -d ${quoted(JSON.stringify(body, null, 2))}`,
  ].join("\n");
}

const OWN = new Set(["ignore_eos"]); // fields that the openai package does not know

function literal(value, depth = 1) {
  const pad = "    ".repeat(depth);
  if (Array.isArray(value)) return `[\n${value.map((one) => `${pad}    ${literal(one, depth + 1)},\n`).join("")}${pad}]`;
  if (value && typeof value === "object") return `{${Object.entries(value).map(([name, one]) => `"${name}": ${literal(one, depth)}`).join(", ")}}`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  return JSON.stringify(value);
}

export function asPython(body, base) {
  const known = Object.entries(body).filter(([name]) => !OWN.has(name)).map(([name, value]) => `    ${name}=${literal(value)},`);
  const own = Object.fromEntries(Object.entries(body).filter(([name]) => OWN.has(name)));
  if (Object.keys(own).length) known.push(`    extra_body=${literal(own)},`);
  return [
    "import os", "", "from openai import OpenAI", "",
    `client = OpenAI(base_url="${base}v1", api_key=os.environ.get("${KEY}", "none"))`,
    "stream = client.chat.completions.create(", ...known, ")",
    "for chunk in stream:",
    "    if chunk.choices and chunk.choices[0].delta.content:",
    '        print(chunk.choices[0].delta.content, end="", flush=True)', "",
  ].join("\n");
}
