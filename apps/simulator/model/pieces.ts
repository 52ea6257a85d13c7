import { endOfCharacter, tokenEnd } from './tokens.ts';

// A text longer than this streams in larger pieces than tokens: a reflected body of megabytes must not become
// gigabytes of chunks.
const tokenPiecesMax = 65_536;
const largePieceLength = 8_192;

/** The pieces of a streamed text: tokens, larger pieces if the text is very long, or all of it. */
export function* piecesOf(text: string, inOnePiece: boolean | undefined): Generator<{ piece: string; start: number }> {
  const length = inOnePiece === true ? text.length : text.length > tokenPiecesMax ? largePieceLength : undefined;
  for (let start = 0; start < text.length;) {
    const end =
      length === undefined ? tokenEnd(text, start) : endOfCharacter(text, Math.min(start + length, text.length));
    yield { piece: text.slice(start, end), start };
    start = end;
  }
}
