import type { JsonTextLimits } from './parse-json-bytes.ts';

/** What of a body decides where it goes and how it is answered. */
export const headNames = ['model', 'stream', 'stream_options'] as const;

/** At least those members, of a body that is an object. */
export type BodyHead = Readonly<Record<string, unknown>> | null;

/** A body whose bytes were judged in a thread. */
export class LargeJsonBody {
  readonly bytes: Buffer;
  readonly head: BodyHead;
  readonly isChecked: boolean;
  #value: unknown;

  constructor({ bytes, head }: LargeBodyFindings, isChecked: boolean) {
    this.bytes = bytes;
    this.head = head;
    this.isChecked = isChecked;
  }

  get value(): unknown {
    this.#value ??= JSON.parse(this.bytes.toString());
    return this.#value;
  }
}

/** Threads for bodies that would hold up other calls. */
export type LargeBodies = {
  /** Longer ones are large. */
  sizeBytesMin: number;
  /**
   * Judges the pieces of a body, which are empty afterwards. Throws GatewayError as `parseJsonBytes`, what the contract
   * refuses, and `server_overloaded` when too many wait; and the reason of `signal`.
   */
  judge: (
    task: LargeBodyTask,
    caller: { workspaceId: string | null; signal: AbortSignal },
  ) => Promise<LargeBodyFindings>;
};

export type LargeBodyTask = {
  pieces: Buffer[];
  limits: JsonTextLimits;
  /** By which the body is checked as well; null where the route does it. */
  contract: string | null;
  /** What the request holds already, and may hold. */
  usedBytes: number;
  leaseBytesMax: number;
};

export type LargeBodyFindings = {
  bytes: Buffer;
  head: BodyHead;
  /** What the request will hold with the parsed value. */
  usedBytes: number;
};
