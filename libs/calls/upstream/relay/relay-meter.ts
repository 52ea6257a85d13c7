import type { MemoryLease } from '#libs/kernel/sharing/memory-budget.ts';
import type { RelayedSummary } from '#libs/calls/call.ts';
import type { Units, Usage } from '#libs/prices/usage.ts';
import type { Framing } from '#libs/providers/provider.ts';
import { plausibleUnits, plausibleUsage, type UsedBy } from '../answers/plausible-usage.ts';
import { openSseFraming } from '../answers/streams/sse-framing.ts';
import { asRecord, readAnswerUsage } from '../answers/usage.ts';

/**
 * Reads a copy of a body that passes unchanged, to find its usage. Never throws, because the body passes in any case.
 */
export type RelayMeter = {
  push: (chunk: Buffer) => void;
  read: () => { usage: Usage | null; model: string | null } & RelayedSummary;
};

// The maximum size of a body, or of one event of a stream, that is retained and read. Longer ones are not read (images,
// audio).
const keptBytesMax = 1_048_576;
/** Smaller events are not counted. */
const countedBytesMin = 65_536;
/** A text takes two bytes per character if one of its characters is wide. */
const charCopies = 2;
const unread = { usage: null, model: null };

/**
 * Returns a meter for a body of this content type: JSON, or a stream whose last events report usage. Other bodies are
 * not read, and neither is JSON, or an event, for which there is no memory.
 */
export function openRelayMeter(contentType: string, usedBy: UsedBy, memory?: MemoryLease): RelayMeter {
  const meter = contentType.includes('text/event-stream')
    ? openStreamMeter(memory)
    : contentType.includes('json')
      ? openJsonMeter(memory)
      : null;
  if (meter === null) return { push: () => {}, read: () => unread };
  return {
    push: meter.push,
    read() {
      const { usage, units, ...found } = meter.read();
      return {
        ...found,
        usage: usage === null ? null : plausibleUsage(usage, usedBy),
        units: units ? plausibleUnits(units) : null,
      };
    },
  };
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
  /** Bytes since the last complete event, and the bytes that are charged for them. */
  let pendingBytes = 0;
  let heldBytes = 0;
  let framing: Framing | null = openSseFraming({
    onEvent: ({ data }) => {
      pendingBytes = 0;
      if (data.includes('"usage"')) found = usageOf(data);
    },
    onComment: () => {},
    eventCharsMax: keptBytesMax,
    tooLarge: () => new RangeError('an event is too large to read'),
  });
  const hold = (bytes: number): void => {
    const more = (bytes < countedBytesMin ? 0 : bytes) - heldBytes;
    if (more > 0 && memory?.tryCharge(more) === false)
      throw new RangeError('there is not enough memory to read an event');
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

/**
 * Usage and model of a body or of an event: at its top level, or inside `response` (the events of the Responses API).
 */
function usageOf(text: string): ReturnType<RelayMeter['read']> {
  try {
    const outer = asRecord(JSON.parse(text));
    const source =
      outer['usage'] === undefined && outer['response'] !== undefined ? asRecord(outer['response']) : outer;
    const { model, id } = source;
    return {
      usage: readAnswerUsage(source),
      model: typeof model === 'string' ? model : null,
      units: unitsOf(source),
      objectId: typeof id === 'string' ? id : null,
    };
  } catch {
    return unread;
  }
}

/** Seconds of a transcription (`usage` of the type `duration`, or a verbose one), and rankings as Cohere bills them. */
function unitsOf({ usage, duration, meta }: Readonly<Record<string, unknown>>): Units | null {
  const { type, seconds } = asRecord(usage);
  const heard = type === 'duration' ? seconds : usage === undefined ? duration : undefined;
  if (typeof heard === 'number' && heard >= 0 && Number.isFinite(heard)) return { seconds: heard };
  const { search_units: searches } = asRecord(asRecord(meta)['billed_units']);
  return typeof searches === 'number' && Number.isSafeInteger(searches) && searches >= 0 ? { searches } : null;
}
