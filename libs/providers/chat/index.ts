import type { Dialect } from '../provider.ts';
import { ChunkJoiner } from './chunk-joiner.ts';
import { toRecords } from '../turns/json-value.ts';
import { restTurns } from '../turns/stream-joiner.ts';
import { splitCompletion } from './split-completion.ts';
import { createChunkWriter, toCompletion } from './chat-chunks.ts';
import { readChatRequest } from './chat-request.ts';

/** OpenAI's chat completions. */
export const chatDialect: Dialect = {
  operation: 'chat',
  decodeRequest: readChatRequest,
  encodeAnswer: toCompletion,
  openAnswer: createChunkWriter,
  splitAnswer: (answer, includeUsage) => splitCompletion('chat', answer, includeUsage),
  openJoiner: () => new ChunkJoiner(),
  askForRest: ({ messages }, text) => ({
    messages: [...toRecords(messages), ...restTurns(text, (role, content) => ({ role, content }))],
  }),
};
