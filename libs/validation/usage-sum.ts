import type { LineVerdict } from './lines/check-line.ts';
import type { ModelUsage } from './slice-task.ts';

/** Beyond this many models, the others are combined in one entry without a name. */
const modelsMax = 100;

/** Adds up the expected usage of lines, by model. */
export function createUsageSum() {
  const byModel = new Map<string | null, ModelUsage>();
  const of = (model: string | null): ModelUsage => {
    const key = byModel.has(model) || byModel.size < modelsMax ? model : null;
    let entry = byModel.get(key);
    if (entry === undefined) {
      entry = { model: key, lines: 0, inputTokens: 0, outputTokensMax: 0, unboundedLines: 0 };
      byModel.set(key, entry);
    }
    return entry;
  };
  return {
    add({ model, estimate }: Pick<LineVerdict, 'model' | 'estimate'>): void {
      const entry = of(estimate === undefined ? null : model);
      entry.lines += 1;
      entry.inputTokens += estimate?.inputTokens ?? 0;
      entry.outputTokensMax += estimate?.outputTokensMax ?? 0;
      if (estimate?.outputTokensMax == null) entry.unboundedLines += 1;
    },
    addAll(usages: readonly ModelUsage[]): void {
      for (const { model, lines, inputTokens, outputTokensMax, unboundedLines } of usages) {
        const entry = of(model);
        entry.lines += lines;
        entry.inputTokens += inputTokens;
        entry.outputTokensMax += outputTokensMax;
        entry.unboundedLines += unboundedLines;
      }
    },
    take: (): ModelUsage[] => [...byModel.values()],
  };
}
