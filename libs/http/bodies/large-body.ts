import { outputBoundNames } from '#libs/contracts/calls/output-bounds.ts';
import { rememberMembers, type Member } from '#libs/kernel/json/json-members.ts';
import type { JsonTextLimits } from './parse-json-bytes.ts';

/** The members of a body that decide where it is sent, how it is answered, and how much output it can generate. */
export const headNames = ['model', 'stream', 'stream_options', ...outputBoundNames] as const;

/** The head of a body: at least these members, if the body is an object. */
export type BodyHead = Readonly<Record<string, unknown>> | null;

/** A body that was checked without keeping its value, possibly in a thread. */
export class LargeJsonBody {
  readonly bytes: Buffer;
  readonly head: BodyHead;
  readonly isChecked: boolean;
  #value: unknown;

  constructor({ bytes, head, members }: LargeBodyFindings, isChecked: boolean) {
    if (members !== null) rememberMembers(bytes, members);
    this.bytes = bytes;
    this.head = head;
    this.isChecked = isChecked;
  }

  get value(): unknown {
    this.#value ??= JSON.parse(this.bytes.toString());
    return this.#value;
  }
}

/** Checks large bodies, in threads if they would block other calls. */
export type LargeBodies = {
  /** Longer bodies count as large. */
  sizeBytesMin: number;
  /**
   * Checks a body, whose pieces are moved to the findings. Throws GatewayError like `parseJsonBytes`, the errors of the
   * contract, `server_overloaded` if too many bodies wait, and the reason of `signal`.
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
  /** The memory that the request already uses, and the maximum that it can use. */
  usedBytes: number;
  leaseBytesMax: number;
};

export type LargeBodyFindings = {
  bytes: Buffer;
  head: BodyHead;
  /** The top-level members, so that no later step has to look for them; null: unknown. */
  members: readonly Member[] | null;
  /** The memory of the request including the parsed value. */
  usedBytes: number;
};
