import type { Wire } from './conformance-case.ts';

/** Server-sent events; `eventOf` names each by its JSON, `done` ends a complete stream as OpenAI does. */
export function sseWire({ eventOf, done = false }: { eventOf?: (json: unknown) => string; done?: boolean } = {}): Wire {
  return {
    contentType: 'text/event-stream',
    frame: (line) => {
      const name = eventOf === undefined ? '' : `event: ${eventOf(JSON.parse(line))}\n`;
      return Buffer.from(`${name}data: ${line}\n\n`);
    },
    ...(done ? { end: Buffer.from('data: [DONE]\n\n') } : {}),
  };
}
