import type { MemoryLease } from '#libs/kernel/memory-budget.ts';
import type { Usage } from '#libs/calls/call.ts';
import type { Framing } from '#libs/providers/provider.ts';
import { openSseFraming } from './sse-framing.ts';
import { asRecord, readTokenUsage, readUsage } from './usage.ts';

/** Reads a copy of a body that passes untouched, for what it says of usage. Never throws: the body passes in any case. */
export type RelayMeter = {
  push: (chunk: Buffer) => void;
  read: () => { usage: Usage | null; model: string | null };
};

// What is kept of a body to be read at its end, and of one event of a stream; longer ones pass unread (images, audio).
const keptBytesMax = 1_048_576;
/** Smaller events count nowhere. */
const countedBytesMin = 65_536;
/** A text takes two bytes a character when one of them is wide. */
const charCopies = 2;
const unread = { usage: null, model: null };

/**
 * A meter for a body of this content type: JSON, or a stream of events whose last ones tell usage; others are not read, and
 * neither is JSON, or an event, for which there is no memory.
 */
export function openRelayMeter(contentType: string, memory?: MemoryLease): RelayMeter {
  if (contentType.includes('text/event-stream')) return openStreamMeter(memory);
  if (contentType.includes('json')) return openJsonMeter(memory);
  return { push: () => {}, read: () => unread };
}

function openJsonMeter(memory: MemoryLease | undefined): RelayMeter {
  const chunks: Buffer[] = [];
  let bytes = 0;
  let isKept = true;
  return {
    push: (chunk) => {
      bytes += chunk.length;
      isKept &&= bytes <= keptBytesMax && (memory === undefined || memory.tryCharge(chunk.length));
      if (isKept) chunks.push(chunk);
      else chunks.length = 0;
    },
    read: () => (chunks.length === 0 ? unread : usageOf(Buffer.concat(chunks).toString())),
  };
}

function openStreamMeter(memory: MemoryLease | undefined): RelayMeter {
  let found: ReturnType<RelayMeter['read']> = unread;
  /** Bytes since the last whole event, and what is charged for them. */
  let pendingBytes = 0;
  let heldBytes = 0;
  let framing: Framing | null = openSseFraming({
    onEvent: ({ data }) => {
      pendingBytes = 0;
      if (data.includes('"usage"')) found = usageOf(data);
    },
    onComment: () => {},
    eventCharsMax: keptBytesMax,
    tooLarge: () => new RangeError('an event is too large to be read'),
  });
  const hold = (bytes: number): void => {
    const more = (bytes < countedBytesMin ? 0 : bytes) - heldBytes;
    if (more > 0 && memory?.tryCharge(more) === false) throw new RangeError('there is no memory to read an event');
    if (more < 0) memory?.give(-more);
    heldBytes += more;
  };
  const attempt = (step: (framing: Framing) => void): void => {
    if (framing === null) return;
    try {
      step(framing);
    } catch {
      framing = null;
      hold(0);
    }
  };
  return {
    push: (chunk) =>
      attempt((open) => {
        pendingBytes += chunk.length;
        open.push(chunk);
        hold(charCopies * pendingBytes);
      }),
    read: () => {
      attempt((open) => open.end());
      hold(0);
      return found;
    },
  };
}

/** Usage and model of a body or of an event: at its top, or inside `response` (the Responses API's events). */
function usageOf(text: string): ReturnType<RelayMeter['read']> {
  try {
    const outer = asRecord(JSON.parse(text));
    const source = outer['usage'] === undefined ? asRecord(outer['response']) : outer;
    const { usage, model } = source;
    return { usage: readUsage(usage) ?? readTokenUsage(usage), model: typeof model === 'string' ? model : null };
  } catch {
    return unread;
  }
}
