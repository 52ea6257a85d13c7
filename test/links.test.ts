import path from 'node:path';
import { expect, test } from 'vitest';
import { projectFiles, readSource } from './source-files.ts';

const pages = projectFiles.filter((file) => file.endsWith('.md'));

/** A page without its code. */
const proseOf = (page: string): string =>
  readSource(page)
    .replaceAll(/^ *(```+)[^]*?^ *\1/gm, '')
    .replaceAll(/`[^`\n]+`/g, (code) => code.replaceAll(/[[\]()]/g, ''));

/** The anchors that GitHub gives the headings of a page. */
function anchorsOf(page: string): Set<string> {
  const headings = [...proseOf(page).matchAll(/^#{1,6} +(.+)$/gm)].map(([, heading = '']) => heading);
  return new Set(
    headings.map((heading) =>
      heading
        .toLowerCase()
        .replaceAll(/[^\p{L}\p{N}\s_-]/gu, '')
        .replaceAll(' ', '-'),
    ),
  );
}

test('every link between pages points to a file, and to a heading of it', () => {
  const broken = pages.flatMap((page) =>
    [...proseOf(page).matchAll(/\]\((?!https?:|mailto:)([^)\s#]*)(?:#([^)\s]*))?\)/g)].flatMap(
      ([link, file = '', anchor]) => {
        const target = file === '' ? page : path.join(path.dirname(page), file);
        const exists = projectFiles.some((each) => each === target || each.startsWith(`${target.replace(/\/$/, '')}/`));
        const hasAnchor = anchor === undefined || !target.endsWith('.md') || (exists && anchorsOf(target).has(anchor));
        return exists && hasAnchor ? [] : [`${page}: ${link}`];
      },
    ),
  );
  expect(broken).toEqual([]);
});

test('docs/README.md links every page', () => {
  const index = readSource('docs/README.md');
  const listed = pages.filter((page) => /^docs\/[^/]+\.md$/.test(page) && page !== 'docs/README.md');
  expect(listed.filter((page) => !index.includes(`(${path.basename(page)}`))).toEqual([]);
});

test('no page is too long to read, unless it is generated', () => {
  const generated = ['docs/configuration.md', 'docs/providers.md'];
  const lengths = { 'README.md': 10_240, 'docs/ARCHITECTURE.md': 12_288 };
  const tooLong = pages
    .filter((page) => /^(?:docs\/.*|README)\.md$/.test(page) && !generated.includes(page))
    .filter((page) => Buffer.byteLength(readSource(page)) > (lengths[page as keyof typeof lengths] ?? 15_360));
  expect(tooLong).toEqual([]);
});
