// OpenAI's client for Node against a gateway. Settings come as JSON on stdin, so that no key is in
// argv: {address, base_url, key, model, max_tokens}. Prints one JSON document, see tests/clients/clients.py.
import dns from "node:dns";
import { readFileSync } from "node:fs";
import OpenAI from "openai";

const settings = JSON.parse(readFileSync(0, "utf8"));

// As DNS would: the name leads to the address. TLS goes on checking the name.
dns.lookup = (name, options, callback) => {
  const done = callback ?? options;
  if (options?.all) done(null, [{ address: settings.address, family: 4 }]);
  else done(null, settings.address, 4);
};

const client = (apiKey) =>
  new OpenAI({ apiKey, baseURL: settings.base_url, maxRetries: 0, timeout: 120_000 });
const question = {
  model: settings.model,
  max_tokens: settings.max_tokens,
  messages: [{ role: "user", content: "Count to ten." }],
};

const ours = client(settings.key);
const models = [];
for await (const model of ours.models.list()) models.push(model.id);
const whole = await ours.chat.completions.create(question);

const seconds = [];
let text = "";
for await (const chunk of await ours.chat.completions.create({ ...question, stream: true })) {
  seconds.push(performance.now() / 1000);
  text += chunk.choices[0]?.delta?.content ?? "";
}

let refused = {};
try {
  await client("sk-wrong").chat.completions.create(question);
} catch (error) {
  refused = { name: error.constructor.name, status: error.status, code: error.code };
}
console.log(
  JSON.stringify({ models, whole: whole.choices[0].message.content, seconds, text, refused }),
);
