import { readFile } from 'node:fs/promises';
import { z } from 'zod';
import { StartError } from '../start-error.ts';
import { words } from './words.ts';

const Row = z.object({ question: z.string().min(1) });

/**
 * Questions for the requests and their source: the file, or generated ones without a file.
 * Throws StartError when the file cannot be read or one of its lines has no question.
 */
export async function readQuestions(file: string | undefined): Promise<{ questions: string[]; source: string }> {
  if (file === undefined) return { questions: makeQuestions(3_000), source: 'generated' };
  const text = await readFile(file, 'utf8').catch((error: NodeJS.ErrnoException) => {
    throw new StartError(
      `The questions in ${file} cannot be read (${String(error.code)}). Choose another --questions.`,
    );
  });
  const questions = text
    .split('\n')
    .flatMap((line, index) => (line.trim() === '' ? [] : [questionIn(line, index + 1)]));
  if (questions.length === 0) throw new StartError(`There are no questions in ${file}.`);
  return { questions, source: `from ${file}` };
}

function questionIn(line: string, number: number): string {
  try {
    return Row.parse(JSON.parse(line)).question;
  } catch {
    throw new StartError(`Line ${number} of the questions must be a JSON object with a text "question".`);
  }
}

/**
 * Word problems, all different because their numbers come from the index.
 * @testOnly
 */
export function makeQuestions(count: number): string[] {
  const { names, goods, cities } = words;
  return Array.from({ length: count }, (_, index) => {
    const name = names[index % names.length];
    const friend = names[(index + 5) % names.length];
    const good = goods[Math.floor(index / names.length) % goods.length];
    const city = cities[index % cities.length];
    const [many, few] = [40 + index, 2 + (index % 7)];
    switch (index % 3) {
      case 0:
        return `${name} has ${many} ${good} and gives ${few} of them to each of ${few + 1} friends. How many are left?`;
      case 1:
        return `On the market of ${city}, ${name} sells ${many} ${good} for ${few} coins each, ${friend} sells half as many for twice the price. Who earns more, and by how much?`;
      default:
        return `${name} packs ${good} into boxes of ${few + 4}. How many boxes are needed for ${many} ${good}, and how many places stay free in the last one?`;
    }
  });
}
