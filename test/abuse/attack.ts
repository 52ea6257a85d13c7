import type pg from 'pg';

/** Something that one caller, one provider or one batch may do to a gateway that others use as well. */
export type Attack = {
  /** Its name for `--only` and the table. */
  name: string;
  /** One sentence for `--list`: who does what. */
  what: string;
  /** Variables of API and worker that differ from the product's defaults. */
  environment?: Record<string, string>;
  /** The victim is measured beside the attack for at least this long. */
  secondsMin?: number;
  /** The victim's virtual key is for the provider that the attack uses, instead of a provider of its own. */
  sharesProvider?: boolean;
  /** What has to be done before the victim is measured. It may take minutes. */
  prepare?: (scene: Scene) => Promise<void>;
  /** Continues until `scene.signal` aborts. Its errors are counted by `scene.tally` and never thrown. */
  run: (scene: Scene) => Promise<void>;
  /**
   * What the attack needs besides processes. Returns how to undo it after the attack, or why it is not possible here.
   */
  setUp?: (folder: string) => Promise<SetUp | { missing: string }>;
};

export type SetUp = {
  environment?: Record<string, string>;
  /** Runs the API in an environment of its own (startRigProcess), within its memory limit. */
  apiLauncher?: readonly string[];
  undo: () => Promise<void>;
};

/** How the attacker makes a call. */
export type AttackCall = {
  method?: 'GET' | 'POST';
  /** Default: chat completions. */
  path?: string;
  headers?: Record<string, string>;
  body?: Buffer | string | AsyncIterable<Buffer> | null;
  /** Reads no byte of an answer, and keeps the connection open. */
  readsNothing?: boolean;
  /** Disconnects after this long, whatever the state of the call. */
  patienceMs?: number;
};

/** The processes and clients of an attack. */
export type Scene = {
  /** The API's base URL, without `/v1`. */
  url: string;
  /** The attacker's key, which belongs to the first workspace. */
  key: string;
  /** Without a path; the first part of the path decides what it does (hostile-provider-process.ts). */
  providerUrl: string;
  /** The victim's own provider; ends in `/v1`. */
  simulatorUrl: string;
  /** Makes the provider listen on more addresses of the loopback network. */
  listenOn(addresses: readonly string[]): Promise<void>;
  /** From now on the victim's calls go to this provider; ends in `/v1`. */
  moveVictim(customHost: string): Promise<void>;
  pool: pg.Pool;
  folder: string;
  /** A small part of the attack, for the tests that run every day. */
  isShort: boolean;
  signal: AbortSignal;
  tally(outcome: string): void;
  /**
   * Makes a call. Counts and returns its result: a status with the code of the error, or how it ended without an
   * answer.
   */
  call(call: AttackCall): Promise<string>;
  /** A model with this behaviour of the provider, such as `@hang/any`, through a virtual key of the attacker's. */
  model(behaviour: string): Promise<string>;
  /** Uploads an input file. Returns null if it is refused, which is counted. Rejects when it is invalid. */
  upload(lines: Iterable<string>): Promise<string | null>;
  /** Creates a batch of an input file. How it ended is counted at the end. Rejects when it is invalid. */
  createBatch(inputFileId: string | null, endpoint?: string): Promise<void>;
};

/** Runs this many callers until the end. Each repeats the work when it is done and `pauseMs` have passed. */
export async function repeat(
  scene: Scene,
  callers: number,
  pauseMs: number,
  once: () => Promise<unknown>,
): Promise<void> {
  const run = async (): Promise<void> => {
    while (!scene.signal.aborted) {
      await once();
      await pause(scene, pauseMs);
    }
  };
  await Promise.all(Array.from({ length: callers }, run));
}

/** Makes this many calls per second, evenly spread, with up to `openMax` at once. */
export async function atRate(
  scene: Scene,
  { perSecond, openMax }: { perSecond: number; openMax: number },
  once: () => Promise<unknown>,
): Promise<void> {
  let open = 0;
  let sent = 0;
  const startedMs = performance.now();
  while (!scene.signal.aborted) {
    const due = ((performance.now() - startedMs) / 1_000) * perSecond;
    for (; sent < due; sent += 1) {
      if (open >= openMax) continue;
      open += 1;
      void once().finally(() => (open -= 1));
    }
    await pause(scene, 5);
  }
}

/** Waits, but not beyond the end of the attack. */
export function pause({ signal }: Pick<Scene, 'signal'>, ms: number): Promise<void> {
  if (signal.aborted) return Promise.resolve();
  return new Promise((resolve) => {
    const done = (): void => {
      clearTimeout(timer);
      signal.removeEventListener('abort', done);
      resolve();
    };
    const timer = setTimeout(done, ms);
    signal.addEventListener('abort', done, { once: true });
  });
}

/** Resolves at the end of the attack. */
export const untilOver = (scene: Pick<Scene, 'signal'>): Promise<void> => pause(scene, 2_147_483_647);

/** The body of a chat call. */
export const chatBody = (model: string, more: object = {}): string =>
  JSON.stringify({ model, messages: [{ role: 'user', content: 'Say hello.' }], ...more });

/** The lines of a batch of chat calls. */
export function* chatLines(model: string, count: number): Generator<string> {
  for (let line = 1; line <= count; line += 1) {
    yield `{"custom_id":"line-${line}","method":"POST","url":"/v1/chat/completions","body":${chatBody(model)}}\n`;
  }
}
