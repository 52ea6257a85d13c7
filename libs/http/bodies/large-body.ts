import { outputBoundNames } from '#libs/contracts/calls/output-bounds.ts';
import type { JsonTextLimits } from './parse-json-bytes.ts';

/** The members of a body that decide where it goes, how it is answered, and how much it may generate. */
export const headNames = ['model', 'stream', 'stream_options', ...outputBoundNames] as const;

/** At least these members of a body, if it is an object. */
export type BodyHead = Readonly<Record<string, unknown>> | null;

/** A body that was checked in a thread. */
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

/** Threads for bodies that would block other calls. */
export type LargeBodies = {
  /** Longer bodies count as large. */
  sizeBytesMin: number;
  /**
   * Checks the pieces of a body, which are empty afterwards. Throws GatewayError like `parseJsonBytes`, what the contract
   * refuses, `server_overloaded` if too many bodies wait, and the reason of `signal`.
   */
  judge: (
    task: LargeBodyTask,
    caller: { workspaceId: string | null; signal: AbortSignal },
  ) => Promise<LargeBodyFindings>;
};

export type LargeBodyTask = {
  pieces: Buffer[];
  limits: JsonTextLimits;
  /** The contract that the body is checked by; null if the route checks it. */
  contract: string | null;
  /** What the request already holds, and the most that it may hold. */
  usedBytes: number;
  leaseBytesMax: number;
};

export type LargeBodyFindings = {
  bytes: Buffer;
  head: BodyHead;
  /** What the request holds including the parsed value. */
  usedBytes: number;
};
