import type { Dialect } from '../provider.ts';
import { MessageJoiner } from './message-joiner.ts';
import { toRecords } from '../turns/json-value.ts';
import { restTurns } from '../turns/stream-joiner.ts';
import { decodeMessageRequest } from './decode-request.ts';
import { encodeMessage } from './encode-answer.ts';
import { splitMessage } from './split-message.ts';
import { MessageWriter } from './write-events.ts';

/** Anthropic's Messages API. */
export const messagesDialect: Dialect = {
  operation: 'messages',
  decodeRequest: decodeMessageRequest,
  encodeAnswer: encodeMessage,
  openAnswer: (head) => new MessageWriter(head),
  splitAnswer: splitMessage,
  openJoiner: () => new MessageJoiner(),
  askForRest: ({ messages }, text) => ({
    messages: [...toRecords(messages), ...restTurns(text, (role, content) => ({ role, content }))],
  }),
};
