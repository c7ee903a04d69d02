// The official TypeScript client, unmodified, goes over all that a server offers. Reads a plan from standard input:
//   {"url", "token", "calls": {NAME: ARGUMENTS}, "resources": [URI], "prompts": {NAME: ARGUMENTS}, "triggers": [TOOL]}
// and prints one JSON document with what it saw, by name. An MCP error is an answer, not a failure of this script.
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const chunks = [];
for await (const chunk of process.stdin) chunks.push(chunk);
const plan = JSON.parse(Buffer.concat(chunks).toString("utf8"));

async function attempt(ask) {
  try {
    return await ask();
  } catch (error) {
    return { error: { name: error.name, code: error.code ?? null, message: error.message, data: error.data ?? null } };
  }
}

const client = new Client(
  { name: "ostiary-typescript-client-test", version: "1.0.0" },
  {
    versionNegotiation: { mode: "auto" },
    capabilities: { elicitation: { form: {} }, sampling: {}, roots: {} },
  },
);
client.setRequestHandler("elicitation/create", async () => ({
  action: "accept",
  content: { name: "Ada", color: "green", ok: true, context: "tests" },
}));
client.setRequestHandler("sampling/createMessage", async () => ({
  role: "assistant",
  content: { type: "text", text: "So it is." },
  model: "parrot",
}));
client.setRequestHandler("roots/list", async () => ({ roots: [{ uri: "file:///work" }] }));

// What a subscription delivers, waited for one by one.
const arrived = [];
let wake = () => {};
for (const method of [
  "notifications/tools/list_changed",
  "notifications/prompts/list_changed",
  "notifications/resources/updated",
]) {
  client.setNotificationHandler(method, (notification) => {
    const { method, params } = notification;
    arrived.push({ method, uri: params?.uri ?? null });
    wake();
  });
}
async function next(count) {
  const limit = AbortSignal.timeout(20_000);
  while (arrived.length < count) {
    await new Promise((resolve, reject) => {
      wake = resolve;
      limit.addEventListener("abort", () => reject(new Error("no notification came")));
    });
  }
  return arrived[count - 1];
}

const headers = plan.token ? { Authorization: `Bearer ${plan.token}` } : {};
await client.connect(new StreamableHTTPClientTransport(new URL(plan.url), { requestInit: { headers } }));
const seen = {
  version: client.getNegotiatedProtocolVersion?.() ?? null,
  capabilities: client.getServerCapabilities(),
  tools: await attempt(() => client.listTools()),
  prompts: await attempt(() => client.listPrompts()),
  resources: await attempt(() => client.listResources()),
  templates: await attempt(() => client.listResourceTemplates()),
};
const progress = [];
const onprogress = (reported) => progress.push(reported);
for (const [name, given] of Object.entries(plan.calls)) {
  seen[name] = await attempt(() => client.callTool({ name, arguments: given }, { onprogress }));
}
seen.progress = progress;
for (const uri of plan.resources) seen[uri] = await attempt(() => client.readResource({ uri }));
for (const [name, given] of Object.entries(plan.prompts)) {
  seen[name] = await attempt(() => client.getPrompt({ name, arguments: given }));
}
seen.completed = await attempt(() =>
  client.complete({
    ref: { type: "ref/resource", uri: "test://template/{id}/data" },
    argument: { name: "id", value: "par" },
  }),
);
const subscription = await client.listen({
  toolsListChanged: true,
  promptsListChanged: true,
  resourceSubscriptions: ["test://watched-resource"],
});
seen.honored = subscription.honoredFilter;
for (const [index, name] of plan.triggers.entries()) {
  await client.callTool({ name, arguments: {} });
  seen[name] = await next(index + 1);
}
await subscription.close();
await client.close();
process.stdout.write(JSON.stringify(seen));
