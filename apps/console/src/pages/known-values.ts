import { useQuery } from '@tanstack/react-query';
import { providerNames } from '../../generated/names.ts';
import { allPages } from '../api/all-pages.ts';
import { answerOf, api } from '../api/client.ts';
import type { KnownValues } from '../parts/complete-json.ts';

/** The slugs that a config can name. If a key cannot read some of them, they are not offered for completion. */
export function useKnownValues(): KnownValues {
  const slugs = (rows: readonly { slug?: string | null }[] | undefined): string[] =>
    (rows ?? []).flatMap(({ slug }) => (slug == null ? [] : [slug]));
  const keys = useQuery({
    queryKey: ['virtual_key', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/virtual-keys', { params: { query } }))),
    retry: false,
  });
  const prompts = useQuery({
    queryKey: ['prompt', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/prompts', { params: { query } }))),
    retry: false,
  });
  const guardrails = useQuery({
    queryKey: ['guardrail', 'list'],
    queryFn: () => allPages((query) => answerOf(api.GET('/v1/guardrails', { params: { query } }))),
    retry: false,
  });
  const checks = slugs(guardrails.data?.data);
  return {
    provider: providerNames,
    virtual_key: slugs(keys.data?.data),
    prompt_id: slugs(prompts.data?.data),
    input_guardrails: checks,
    output_guardrails: checks,
  };
}
