// The official TypeScript client, unmodified, as an application would use it. Reads a plan from standard input:
//   {"url", "token", "mode": "auto" | {"pin": VERSION}, "calls": [{"name", "arguments"}], "resource"?, "prompt"?, "opens"?, "apart"?}
// With "opens" its user opens every page and says yes to every form. With "apart" each request is a connection of its own.
// and prints one JSON document with what it got. An MCP error is an answer, not a failure of this script.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const plan = JSON.parse(Buffer.concat(chunks).toString("utf8"));

async function attempt(ask) {
  try {
    return { result: await ask() };
  } catch (error) {
    return { error: { name: error.name, code: error.code ?? null, message: error.message, data: error.data ?? null } };
  }
}

const client = new Client(
  { name: "ostiary-typescript-client-test", version: "1.0.0" },
  {
    versionNegotiation: { mode: plan.mode },
    ...(plan.opens && { capabilities: { elicitation: { form: {}, url: {} } } }),
  },
);
const opened = [];
if (plan.opens) {
  client.setRequestHandler("elicitation/create", async ({ params }) => {
    if (params.mode !== "url") return { action: "accept", content: { sure: true } };
    opened.push(params.url);
    return { action: "accept" };
  });
}
const transport = new StreamableHTTPClientTransport(new URL(plan.url), {
  requestInit: { headers: { Authorization: `Bearer ${plan.token}`, ...(plan.apart && { Connection: "close" }) } },
});

const connected = await attempt(() => client.connect(transport));
const said = { connected: "error" in connected ? connected : true, opened };
if (said.connected === true) {
  said.version = client.getNegotiatedProtocolVersion?.() ?? null;
  said.tools = await attempt(() => client.listTools());
  said.calls = [];
  for (const call of plan.calls ?? []) said.calls.push(await attempt(() => client.callTool(call)));
  if (plan.resource) said.resource = await attempt(() => client.readResource({ uri: plan.resource }));
  if (plan.prompt) said.prompt = await attempt(() => client.getPrompt(plan.prompt));
  await client.close();
}
process.stdout.write(JSON.stringify(said));
