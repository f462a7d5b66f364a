// Asks a server for what the prompts on standard input lead to, through the stream accumulators of the official SDKs,
// and writes the events and what was accumulated to standard output. With `fails`, what it asks for fails in mid-stream,
// and it writes the events and the error instead.
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import { readFileSync } from "node:fs";

const { url, tools, prompts, fails } = JSON.parse(readFileSync(0, "utf8"));
const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const CHAT_EVENTS = [
  "connect", "chunk", "content.delta", "content.done", "refusal.delta", "refusal.done",
  "tool_calls.function.arguments.delta", "tool_calls.function.arguments.done", "chatCompletion", "error", "end",
];
const MESSAGE_EVENTS = [
  "connect", "streamEvent", "text", "thinking", "inputJson", "contentBlock", "message", "error", "end",
];

function noting(stream, names, kinds) {
  for (const name of names) stream.on(name, () => kinds.push(name));
}

async function chat(content, kinds) {
  const messages = [{ role: "user", content }];
  const stream = openai.chat.completions.stream({ model: "demo", temperature: 0, max_tokens: 200, messages, tools: tools.chat });
  noting(stream, CHAT_EVENTS, kinds);
  let thoughts = ""; // a field that the SDK does not know: of several deltas it keeps the last
  stream.on("chunk", (chunk) => (thoughts += chunk.choices[0]?.delta.reasoning_content ?? ""));
  const { message } = (await stream.finalChatCompletion()).choices[0];
  const calls = (message.tool_calls ?? []).map((call) => [call.function.name, JSON.parse(call.function.arguments)]);
  return { kinds, thoughts, text: message.content ?? "", calls };
}

async function responses(input, kinds) {
  const stream = openai.responses.stream({ model: "demo", temperature: 0, max_output_tokens: 200, input, tools: tools.responses });
  for await (const event of stream) kinds.push(event.type);
  const { output, output_text, error } = await stream.finalResponse();
  if (error) throw Object.assign(new Error(error.message), { type: error.code });
  const parts = output.filter((item) => item.type === "reasoning").flatMap((item) => item.content);
  const calls = output.filter((item) => item.type === "function_call").map((item) => [item.name, JSON.parse(item.arguments)]);
  return { kinds, thoughts: parts.map((part) => part.text).join(""), text: output_text ?? "", calls };
}

async function messages(content, kinds) {
  const asked = { model: "demo", max_tokens: 200, messages: [{ role: "user", content }], tools: tools.messages };
  const stream = anthropic.messages.stream(asked);
  noting(stream, MESSAGE_EVENTS, kinds);
  const blocks = (await stream.finalMessage()).content;
  const joined = (kind) => blocks.filter((block) => block.type === kind).map((block) => block[kind]).join("");
  const calls = blocks.filter((block) => block.type === "tool_use").map((block) => [block.name, block.input]);
  return { kinds, thoughts: joined("thinking"), text: joined("text"), calls };
}

const found = {};
for (const [api, ask] of Object.entries({ chat, responses, messages })) {
  found[api] = {};
  for (const [says, prompt] of Object.entries(prompts)) {
    const kinds = [];
    try {
      found[api][says] = await ask(prompt, kinds);
    } catch (error) {
      if (!fails) throw error;
      found[api][says] = { kinds, error: { class: error.constructor.name, type: error.type ?? error.error?.type, message: error.message } };
    }
  }
}
process.stdout.write(JSON.stringify(found));
