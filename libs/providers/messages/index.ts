import type { Dialect } from '../provider.ts';
import { brokenMessages } from './join-streams.ts';
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
  brokenStreams: brokenMessages,
};
