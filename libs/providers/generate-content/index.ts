import type { Dialect } from '../provider.ts';
import { brokenContents } from './join-streams.ts';
import { adaptEdits } from './adapt-edits.ts';
import { decodeGenerateRequest } from './decode-request.ts';
import { encodeGenerateAnswer } from './encode-answer.ts';
import { GenerateWriter } from './write-stream.ts';

/** Google's generateContent. */
export const generateContentDialect: Dialect = {
  operation: 'generate_content',
  decodeRequest: decodeGenerateRequest,
  adaptEdits,
  encodeAnswer: encodeGenerateAnswer,
  openAnswer: (head) => new GenerateWriter(head),
  splitAnswer: (answer) => [JSON.stringify(answer)],
  brokenStreams: brokenContents,
};
