import { diffLines } from 'diff';

/** The changes between two texts, line by line, with signs before the lines so that they can be read without the colours. */
export function TextDiff({ before, after, label }: { before: string; after: string; label: string }) {
  const parts = diffLines(before, after);
  const isSame = parts.every(({ added, removed }) => !added && !removed);
  if (isSame) return <p className="muted">No differences.</p>;
  return (
    <div className="code-box diff" role="region" aria-label={label} tabIndex={0}>
      <pre>
        {parts.map(({ value, added, removed }, index) => {
          const sign = added ? '+' : removed ? '-' : ' ';
          const text = value.replace(/\n$/, '').replaceAll(/^/gm, `${sign} `);
          return (
            <span key={index} className={added ? 'added' : removed ? 'removed' : undefined}>
              {`${text}\n`}
            </span>
          );
        })}
      </pre>
    </div>
  );
}
