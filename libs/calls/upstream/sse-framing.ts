import { createParser } from 'eventsource-parser';
import type { Framing, StreamEvent } from '#libs/providers/provider.ts';

type Options = {
  onEvent: (event: StreamEvent) => void;
  /** A sign of life without content; the text is dropped. */
  onComment: () => void;
  eventCharsMax: number;
  tooLarge: () => Error;
};

/**
 * Cuts a byte stream into server-sent events, wherever TCP cut it. Throws what `tooLarge` makes when an event outgrows
 * its bound, and TypeError on bytes that are not UTF-8: a replacement character would alter a payload unnoticed.
 */
export function openSseFraming({ onEvent, onComment, eventCharsMax, tooLarge }: Options): Framing {
  const decoder = new TextDecoder('utf-8', { fatal: true });
  let overflow = false;
  const parser = createParser({
    onEvent,
    onComment,
    onError: (error) => {
      overflow ||= error.type === 'max-buffer-size-exceeded';
    },
    maxBufferSize: eventCharsMax,
  });
  return {
    push: (chunk) => {
      parser.feed(decoder.decode(chunk, { stream: true }));
      if (overflow) throw tooLarge();
    },
    end: () => {
      // Servers that leave out the last blank line are common: what stands there is judged like any other event.
      parser.feed(`${decoder.decode()}\n\n`);
    },
  };
}
