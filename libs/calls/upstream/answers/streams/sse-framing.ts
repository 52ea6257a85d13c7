import { createParser } from 'eventsource-parser';
import type { Framing, StreamEvent } from '#libs/providers/provider.ts';

type Options = {
  onEvent: (event: StreamEvent) => void;
  /** A comment shows that the connection is alive. Its text is dropped. */
  onComment: () => void;
  eventCharsMax: number;
  tooLarge: () => Error;
};

/**
 * Splits a byte stream into server-sent events, however TCP has split it. Throws the error of `tooLarge` when an event
 * exceeds its limit, and TypeError for bytes that are not UTF-8, because a replacement character would change a payload
 * unnoticed.
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
      // Many servers leave out the last blank line, so the rest at the end is treated like any other event.
      parser.feed(`${decoder.decode()}\n\n`);
    },
  };
}
