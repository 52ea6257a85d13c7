import { MutationCache, QueryCache, QueryClient, QueryClientProvider } from '@tanstack/react-query';
import { RouterProvider } from '@tanstack/react-router';
import { StrictMode } from 'react';
import { createRoot } from 'react-dom/client';
import { ApiError } from './api/client.ts';
import { serverPath } from './api/server-url.ts';
import { Invite } from './pages/invite.tsx';
import { router } from './router.tsx';
import { checkSession, SignedIn } from './session.tsx';
import './styles.css';

/** If a request is refused because the session has ended, the page asks for a key, like the first page. */
const onError = (error: Error, queryKey: readonly unknown[] = []): void => {
  if (error instanceof ApiError && error.status === 401 && queryKey[0] !== 'session') checkSession(queries);
};

const queries = new QueryClient({
  queryCache: new QueryCache({ onError: (error, { queryKey }) => onError(error, queryKey) }),
  mutationCache: new MutationCache({ onError: (error) => onError(error) }),
  defaultOptions: {
    queries: {
      // Events report changes (api/live.ts), so data is not read again without a reason.
      staleTime: Infinity,
      refetchOnWindowFocus: false,
      retry: (failures, error) =>
        failures < 3 && (!(error instanceof ApiError) || error.status === 0 || error.status >= 500),
    },
  },
});

// The links of the page are relative, and the browser resolves that of the icon again when the address changes.
for (const icon of document.querySelectorAll<HTMLLinkElement>('link[rel="icon"]')) icon.setAttribute('href', icon.href);

const root = document.getElementById('root');
if (root === null) throw new Error('the page has no element to render the console in');
createRoot(root).render(
  <StrictMode>
    <QueryClientProvider client={queries}>
      {location.pathname === `${serverPath}/console/invite` ? (
        <Invite />
      ) : (
        <SignedIn>
          <RouterProvider router={router} />
        </SignedIn>
      )}
    </QueryClientProvider>
  </StrictMode>,
);
