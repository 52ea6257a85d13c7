import type { AnswerBlock } from '../turns/answer.ts';
import { type Json, asText, toRecord, toRecords } from '../turns/json-value.ts';

/** One part of Gemini's content as an OpenAI client sees it. `signature` is the part's thought signature. */
export type ReadPart =
  | { kind: 'text' | 'thought'; text: string; signature: string | undefined }
  | {
      kind: 'call';
      id: string | undefined;
      name: string;
      args: unknown;
      signature: string | undefined;
      /** In a stream, if arguments were requested in pieces. */
      partialArgs: readonly Json[];
      willContinue: boolean;
    }
  | { kind: 'image'; url: string; signature: string | undefined };

/** The parts of a candidate. Those without an equivalent (code that Gemini ran itself) are left out. */
export function readParts(candidate: Json): ReadPart[] {
  return toRecords(toRecord(candidate['content'])['parts']).flatMap((part): ReadPart[] => {
    const signature = asText(part['thoughtSignature']);
    const { functionCall, inlineData } = part;
    if (functionCall !== undefined) {
      const { id, name, args, partialArgs, willContinue } = toRecord(functionCall);
      const given = asText(id);
      return [
        {
          kind: 'call',
          id: given === '' ? undefined : given,
          name: asText(name) ?? '',
          args,
          signature,
          partialArgs: toRecords(partialArgs),
          willContinue: willContinue === true,
        },
      ];
    }
    if (inlineData !== undefined) {
      const { mimeType, data } = toRecord(inlineData);
      return [{ kind: 'image', url: `data:${asText(mimeType) ?? ''};base64,${asText(data) ?? ''}`, signature }];
    }
    const text = asText(part['text']);
    return text === undefined ? [] : [{ kind: part['thought'] === true ? 'thought' : 'text', text, signature }];
  });
}

/** A piece of an answer's block, with the index of the block. */
export type BlockPiece = {
  index: number;
  delta:
    | { url: string; signature?: string }
    | { text: string; signature?: string }
    | { thinking: string; signature?: string };
};

/**
 * Returns the pieces of one candidate's blocks: consecutive parts of one kind are one block, which a signature ends. Calls
 * are not among them.
 */
export function createBlockPieces(): (part: ReadPart) => BlockPiece[] {
  let index = -1;
  let open: ReadPart['kind'] | undefined;
  return (part) => {
    if (part.kind === 'call') {
      open = undefined;
      return [];
    }
    const { signature } = part;
    if (part.kind !== 'image' && part.text === '' && signature === undefined) return [];
    if (open !== part.kind || part.kind === 'image') index += 1;
    open = signature === undefined ? part.kind : undefined;
    const signed = signature === undefined ? {} : { signature };
    if (part.kind === 'image') {
      return [{ index, delta: { url: part.url, ...signed } }];
    }
    const { text } = part;
    return [{ index, delta: part.kind === 'thought' ? { thinking: text, ...signed } : { text, ...signed } }];
  };
}

/** Joins the pieces into the blocks of a whole answer. */
export function joinBlocks(pieces: readonly BlockPiece[]): AnswerBlock[] {
  const blocks: AnswerBlock[] = [];
  for (const { index, delta } of pieces) {
    const block = (blocks[index] ??= emptyBlock(delta));
    if (block.type === 'text' && 'text' in delta) block.text += delta.text;
    if (block.type === 'thinking' && 'thinking' in delta) block.thinking += delta.thinking;
    if (block.type !== 'redacted_thinking' && delta.signature !== undefined) block.signature = delta.signature;
  }
  return blocks;
}

function emptyBlock(delta: BlockPiece['delta']): AnswerBlock {
  if ('url' in delta) return { type: 'image_url', image_url: { url: delta.url } };
  return 'text' in delta ? { type: 'text', text: '' } : { type: 'thinking', thinking: '' };
}
