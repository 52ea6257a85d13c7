import type pg from 'pg';

/** Something that one caller, one provider or one batch may do to a gateway that others use, too. */
export type Attack = {
  /** For `--only` and the table. */
  name: string;
  /** For `--list`: who does what. */
  what: string;
  /** Of API and worker, beside the defaults of the product. */
  environment?: Record<string, string>;
  /** The victim is measured beside it for at least so long. */
  secondsMin?: number;
  /** The victim's own key is for the provider that the attack uses, not for one of its own. */
  sharesProvider?: boolean;
  /** What has to be done before the victim is measured beside it; it may take minutes. */
  prepare?: (scene: Scene) => Promise<void>;
  /** Goes on until `scene.signal` aborts. What it meets on its way is told by `scene.tally`, never thrown. */
  run: (scene: Scene) => Promise<void>;
  /** What has to be there beyond processes: undone when the attack is over, or the reason why it cannot be had here. */
  setUp?: (folder: string) => Promise<SetUp | { missing: string }>;
};

export type SetUp = {
  environment?: Record<string, string>;
  /** Runs the API in its own place (startRigProcess), within its limit of memory. */
  apiLauncher?: readonly string[];
  undo: () => Promise<void>;
};

/** How a call of the attacker's is made. */
export type AttackCall = {
  method?: 'GET' | 'POST';
  /** Default: chat completions. */
  path?: string;
  headers?: Record<string, string>;
  body?: Buffer | string | AsyncIterable<Buffer> | null;
  /** Reads no byte of an answer, and keeps the connection. */
  readsNothing?: boolean;
  /** Leaves after so long, wherever the call stands. */
  patienceMs?: number;
};

/** Where an attack takes place. */
export type Scene = {
  /** Of the API, without `/v1`. */
  url: string;
  /** The attacker's key: that of the first workspace. */
  key: string;
  /** Without a path; what it does is the first part of one (hostile-provider-process.ts). */
  providerUrl: string;
  /** The victim's own provider; ends in `/v1`. */
  simulatorUrl: string;
  /** Makes the provider listen at more addresses of the loopback network. */
  listenOn(addresses: readonly string[]): Promise<void>;
  /** The victim's calls go to this provider from now on; ends in `/v1`. */
  moveVictim(customHost: string): Promise<void>;
  pool: pg.Pool;
  folder: string;
  /** A small part of the attack, for the tests that run every day. */
  isShort: boolean;
  signal: AbortSignal;
  tally(outcome: string): void;
  /** Makes a call; tallies and returns what it brought: a status with the code of the error, or how it ended without one. */
  call(call: AttackCall): Promise<string>;
  /** A model at the provider's behaviour, such as `@hang/any`, through a virtual key of the attacker's. */
  model(behaviour: string): Promise<string>;
  /** Uploads an input file; null where that is refused, which is tallied. Rejects when it is not valid. */
  upload(lines: Iterable<string>): Promise<string | null>;
  /** Creates a batch of an input file; what became of it is tallied at the end. Rejects when it is not valid. */
  createBatch(inputFileId: string | null, endpoint?: string): Promise<void>;
};

/** So many callers, each of whom does it again as soon as it is done and `pauseMs` have passed, until the end. */
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

/** So many calls a second, spread evenly; each may take its time, up to `openMax` at once. */
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

/** Waits, or less where the attack is over. */
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

/** Until the end. */
export const untilOver = (scene: Pick<Scene, 'signal'>): Promise<void> => pause(scene, 2_147_483_647);

/** A chat call's body. */
export const chatBody = (model: string, more: object = {}): string =>
  JSON.stringify({ model, messages: [{ role: 'user', content: 'Say hello.' }], ...more });

/** Lines of a batch of chat calls. */
export function* chatLines(model: string, count: number): Generator<string> {
  for (let line = 1; line <= count; line += 1) {
    yield `{"custom_id":"line-${line}","method":"POST","url":"/v1/chat/completions","body":${chatBody(model)}}\n`;
  }
}
