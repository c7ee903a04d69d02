// The official TypeScript client of the revisions before 2026-07-28 (SDK 1.x), unmodified. Plan and answer as of old_sdk/client.py:
//   {"url", "token", "steps": [["ping"] | ["tools"] | ["call", NAME, ARGUMENTS] | ["read", URI] | ["prompt", NAME, ARGUMENTS] | ["end"]]}
// and one JSON document per step on a line of its own. After ["wait"] it goes on when a line comes in.
import { createInterface } from "node:readline";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const plan = JSON.parse((await lines.next()).value);
const say = (document) => process.stdout.write(JSON.stringify(document) + "\n");

async function attempt(ask) {
  try {
    return { result: (await ask()) ?? {} };
  } catch (error) {
    return { error: { code: error.code ?? null, message: error.message } };
  }
}

const capabilities = { elicitation: { form: {}, url: {} }, sampling: {}, roots: { listChanged: true } };
const client = new Client({ name: "ostiary-older-client-test", version: "1.0.0" }, { capabilities });
const transport = new StreamableHTTPClientTransport(new URL(plan.url), {
  requestInit: { headers: { Authorization: `Bearer ${plan.token}` } },
});
const steps = {
  ping: () => client.ping(),
  tools: () => client.listTools(),
  call: (name, args) => client.callTool({ name, arguments: args }),
  read: (uri) => client.readResource({ uri }),
  prompt: (name, args) => client.getPrompt({ name, arguments: args }),
  roots: () => client.sendRootsListChanged(),
  end: () => transport.terminateSession(),
  wait: () => lines.next(),
};
const connected = await attempt(() => client.connect(transport));
if (connected.result) {
  connected.result = {
    protocolVersion: transport.protocolVersion,
    capabilities: client.getServerCapabilities(),
    serverInfo: client.getServerVersion(),
  };
}
say(connected);
if (connected.result) {
  for (const [name, ...rest] of plan.steps) say(await attempt(() => steps[name](...rest)));
  await client.close();
}
process.exit(0);
