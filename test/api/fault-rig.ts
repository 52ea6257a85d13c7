import { eventually } from '#test/eventually.ts';
import { startPlatform, type TestPlatform } from '#test/platform.ts';
import { startUpstream, type Upstream, type UpstreamReply, type UpstreamRequest } from '#test/upstream.ts';
import { canary, postJson } from './scripted-provider.ts';
import { wireKeys } from './wire-keys.ts';

/** A call as it reached the front: at what moment (performance.now()), and for which model. */
type Arrival = { at: number; text: string };

export type FaultRig = {
  platform: TestPlatform;
  /**
   * Stands before the simulator and may answer in its place; virtual keys `front-openai`, `front-bedrock`, … lead to it,
   * `sim-openai`, … straight to the simulator.
   */
  front: Upstream;
  /** Chat calls that reached the front whole, oldest first; not those for tokens. */
  arrivals: Arrival[];
  /** Answers of the front instead of the simulator's: the first of them that gives one. */
  intercept: (answer: Intercept | null) => void;
  /** Posts a chat call. */
  ask: (model: string, options?: AskOptions) => Promise<Asked>;
  /** Waits until no call, stream, place or connection to a provider is left. */
  idle: () => Promise<void>;
  stop: () => Promise<void>;
};

/** True: answered, or left to hang. False: the simulator is asked. */
type Intercept = (reply: UpstreamReply, text: string) => boolean;

type AskOptions = {
  config?: object;
  stream?: boolean;
  headers?: Record<string, string>;
  content?: string;
};

type ErrorBody = { message: string; type: string; param: string | null; code: string | null };
export type Asked = {
  status: number;
  headers: Headers;
  text: string;
  body: {
    error?: ErrorBody;
    choices?: { message: { content: string | null }; finish_reason: string }[];
  };
};

/** A platform with a worker, and all wire formats twice: straight to the simulator, and with a recorder in between. */
export async function startFaultRig(environment: Record<string, string> = {}): Promise<FaultRig> {
  const front = await startUpstream();
  const platform = await startPlatform({ environment: { SLUICE_EGRESS_ALLOW: '127.0.0.0/8', ...environment } });
  const simulator = new URL(platform.simulatorUrl).origin;
  for (const [name, origin] of [
    ['sim', simulator],
    ['front', front.url.origin],
  ] as const) {
    for (const { provider, key } of wireKeys) {
      const slug = `${name}-${provider}`;
      const response = await postJson(platform, '/virtual-keys', {
        name: slug,
        slug,
        provider,
        ...key(origin, canary),
      });
      if (response.status !== 200) throw new Error(`no virtual key ${slug}: ${await response.text()}`);
    }
  }
  const arrivals: Arrival[] = [];
  let intercept: Intercept | null = null;
  front.script(async (reply, request) => {
    if (request.path.startsWith('/token')) return passOn(simulator, reply, request);
    const text = `${request.path}\n${request.body.toString()}`;
    arrivals.push({ at: performance.now(), text });
    if (intercept?.(reply, text) !== true) await passOn(simulator, reply, request);
  });
  return {
    platform,
    front,
    arrivals,
    intercept: (answer) => {
      intercept = answer;
      arrivals.length = 0;
    },
    ask: async (model, { config, stream = false, headers = {}, content = 'Say hello.' } = {}) => {
      const sent = config === undefined ? headers : { 'x-gateway-config': JSON.stringify(config), ...headers };
      const call = { model, messages: [{ role: 'user', content }], ...(stream ? { stream } : {}) };
      const response = await postJson(platform, '/chat/completions', call, sent);
      const text = await response.text();
      const isJson = response.headers.get('content-type')?.startsWith('application/json') === true;
      const body = isJson ? (JSON.parse(text) as Asked['body']) : {};
      return { status: response.status, headers: response.headers, text, body };
    },
    idle: async () => {
      // Connections are kept alive for the next call; what must not be left is one that is in use.
      await eventually(
        () => ({ ...platform.api.platform.calls.counters(), ...platform.api.platform.traffic.stats() }),
        ({ openCalls, openStreams, waitingRetries, inFlight, waitingLive }) =>
          openCalls + openStreams + waitingRetries + inFlight + waitingLive === 0,
        { timeoutMs: 5_000 },
      );
    },
    stop: async () => {
      await platform.stop();
      await front.stop();
    },
  };
}

/** The simulator's answer to the same request, whole. */
async function passOn(origin: string, reply: UpstreamReply, { method, path, headers, body }: UpstreamRequest) {
  const { host: _host, connection: _connection, 'content-length': _length, ...kept } = headers;
  const response = await fetch(origin + path, {
    method,
    headers: kept,
    body: new Uint8Array(body),
    redirect: 'manual',
  });
  const type = response.headers.get('content-type');
  reply.respond(
    response.status,
    Buffer.from(await response.arrayBuffer()),
    type === null ? {} : { 'content-type': type },
  );
}

/** What a client sees of a stream, event by event. */
export function eventsOf(text: string): {
  payloads: { error?: ErrorBody; choices?: { delta?: { content?: string }; finish_reason?: string | null }[] }[];
  done: boolean;
} {
  const data = text
    .split('\n\n')
    .filter((event) => event.startsWith('data: '))
    .map((event) => event.slice('data: '.length));
  const done = data.includes('[DONE]');
  return { payloads: data.filter((line) => line !== '[DONE]').map((line) => JSON.parse(line) as never), done };
}
