import type { Dialect } from '../provider.ts';
import { brokenChunks } from './join-streams.ts';
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
  brokenStreams: brokenChunks,
};
