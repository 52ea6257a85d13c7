import { GatewayError } from '#libs/kernel/errors.ts';
import type { RequestContext } from './request-context.ts';

type Holder = Pick<RequestContext, 'heldBodyBytes'>;

/** What the JSON bodies of all requests that a process works on may take together; each counts until its answer is sent. */
export type BodyMemory = {
  /**
   * Holds `sizeBytes` more for a request. Throws unavailable (`server_overloaded`, to be tried again after a second) when
   * there is no room; but what comes alone is held, however large.
   */
  hold(holder: Holder, sizeBytes: number): void;
  /** Gives back all that the request holds. */
  release(holder: Holder): void;
  heldBytes(): number;
};

// Calls with images must not keep out those that need next to nothing: the last eighth is for small bodies.
const smallBytesMax = 65_536;
const largeShare = 7 / 8;

export function createBodyMemory(bytesMax: number): BodyMemory {
  let heldBytes = 0;
  return {
    hold(holder, sizeBytes) {
      const own = holder.heldBodyBytes + sizeBytes;
      const max = own > smallBytesMax ? bytesMax * largeShare : bytesMax;
      const isAlone = heldBytes === holder.heldBodyBytes;
      if (heldBytes + sizeBytes > max && !isAlone) throw overloaded();
      holder.heldBodyBytes = own;
      heldBytes += sizeBytes;
    },
    release(holder) {
      heldBytes -= holder.heldBodyBytes;
      holder.heldBodyBytes = 0;
    },
    heldBytes: () => heldBytes,
  };
}

function overloaded(): GatewayError {
  const message = 'The bodies of the requests under way take as much memory as they may. Try again shortly.';
  return new GatewayError('unavailable', 'server_overloaded', message, { retryAfterMs: 1_000 });
}
